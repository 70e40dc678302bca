// The first non-finite operation of a training step, forward or backward: with layer, branch, stage, row and head.
//
// Three witnesses are put together:
//  - the model's observed stages, looked at as they are computed: the first bad one gives layer, branch and rows;
//  - the gradient that arrives at each of those stages (a tensor hook), for the backward pass;
//  - every ATen operation (RecordFunction): the first whose output holds NaN or +inf while no input did. In the
//    backward pass the autograd node round it is known too, and through its sequence number the forward operation
//    that it differentiates.
// -inf alone is no offence inside (masks are made of it); in a stage that is no log-sum-exp it is.
//
// Every look synchronises with the device, so this is for the second pass, after the watch has reported
// (finite_watch.hpp, finite_check.hpp). One locator at a time in a process, on the thread that runs the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string_view>

#include "suites/probes/finite_sighting.hpp"

namespace suites::probes {

class OpTap;

class FiniteLocator {
 public:
  explicit FiniteLocator(RowMap map);  // of the step that will be watched
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
  std::unique_ptr<OpTap> tap_;
};

}  // namespace suites::probes
