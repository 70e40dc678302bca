// Runs one function forward and backward on given inputs, and what may be round it while it runs.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <string>
#include <vector>

#include "suites/s_sweep/op_content.hpp"

namespace suites::s_sweep_cases {

// While it lives, memory that ATen allocates is filled with NaN (integers: with their largest value), as torch's
// deterministic mode does it.
class StaleMemory {
 public:
  StaleMemory();
  ~StaleMemory();
  StaleMemory(const StaleMemory&) = delete;
  StaleMemory& operator=(const StaleMemory&) = delete;

 private:
  bool before_, warned_;
};

// While it lives, memory that ATen's operations return without writing it (aten::empty and its like) is filled with 0:
// what a run computes then does not depend on what the memory held before.
class ZeroMemory {
 public:
  ZeroMemory();
  ~ZeroMemory();
  ZeroMemory(const ZeroMemory&) = delete;
  ZeroMemory& operator=(const ZeroMemory&) = delete;

 private:
  at::CallbackHandle handle_;
};

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
