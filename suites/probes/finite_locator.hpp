// The first non-finite operation of a training step, forward or backward: with layer, branch, stage, row and head.
//
// Three witnesses are put together:
//  - the model's observed stages, looked at as they are computed: the first bad one gives layer, branch and rows;
//  - the gradient that arrives at each of those stages (a tensor hook), for the backward pass;
//  - every ATen operation (RecordFunction): the first whose output holds NaN or +inf while no input did. In the
//  backward
//    pass the autograd node round it is known too, and through its sequence number the forward operation it
//    differentiates.
// -inf alone is no offence inside (masks are made of it); in a stage that is no log-sum-exp it is.
//
// Every look synchronises with the device, so this is for the second pass, after a cheap check has failed
// (finite_check.hpp). One locator at a time in a process, on the thread that runs the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/config.hpp"
#include "reports/json.hpp"
#include "suites/probes/stages.hpp"

namespace suites::probes {

struct NonFinite {
  bool backward = false;
  Stage stage;                       // where it was first seen; backward: the stage whose gradient was first bad
  std::string op;                    // "aten::_softmax"; "" when no operation was caught making it
  std::string node;                  // backward: the autograd node that ran it, "SoftmaxBackward0"
  std::string forward_op;            // backward: the forward operation that the node differentiates
  std::string forward_stage;         // backward: the stage that this forward operation was on the way to
  std::vector<std::int64_t> rows;    // all bad rows, ascending; tokens, but blocks for compressed keys and values
  std::int64_t row = -1, head = -1;  // of the first bad value
  std::int64_t allowed_keys = -1;    // keys that this row may see in this branch; -1: not a row of a branch
  bool only_empty_rows = false;      // every bad row is one that may see no key at all
  std::string value;                 // "NaN", "+inf", "-inf"

  [[nodiscard]] std::string describe() const;  // one sentence
  [[nodiscard]] reports::Json evidence() const;
};

class FiniteLocator {
 public:
  // S: tokens of the step that will be watched.
  FiniteLocator(const nsa::Geometry& geometry, std::int64_t S);
  ~FiniteLocator();
  FiniteLocator(const FiniteLocator&) = delete;
  FiniteLocator& operator=(const FiniteLocator&) = delete;

  // To be called with every stage; also with "loss" at the end of the forward pass.
  void observe(std::string_view name, const at::Tensor& value);
  // From here on operations belong to the backward pass.
  void begin_backward();
  [[nodiscard]] bool forward_is_bad() const;
  // Nothing when everything was finite.
  [[nodiscard]] std::optional<NonFinite> first() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
  std::uint64_t callback_;
};

}  // namespace suites::probes
