// Runs one function forward and backward on given inputs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "suites/s_sweep/op_content.hpp"

namespace suites::s_sweep_cases {

struct RunOptions {
  std::vector<at::Tensor> given = {};  // the inputs
  bool backward = false;               // with the cotangents of the OpInput
  std::function<void(const std::string& name, const at::Tensor& value)> observe = {};  // every live input and output
  std::function<void()> begin_backward = {};
};
struct OpResults {
  std::vector<at::Tensor> outputs, gradients;  // undefined where there is none
};
[[nodiscard]] OpResults run_op(const OpInput& input, const nsa::Ops& ops, const RunOptions& options);

// The same by nsa::reference in fp64, from the clean inputs.
[[nodiscard]] OpResults run_reference(const OpInput& input, bool backward);

}  // namespace suites::s_sweep_cases
