// Does a run keep its pace and its size? SLOW is told apart from a machine that became slow, and from a run that hangs
// (which the harness ends): a fixed piece of work is timed beside every step.
#pragma once

#include <ATen/core/Tensor.h>

#include "harness/context.hpp"
#include "suites/training/run.hpp"

namespace suites::training_cases {

// The same matrix product again and again, about a millisecond of it.
class Yardstick {
 public:
  explicit Yardstick(at::Device device);
  [[nodiscard]] double seconds() const;  // of one measurement

 private:
  at::Tensor matrix_;
  int products_;
};

// Steps at the start that are not judged: caches, workspaces and the allocator settle.
inline constexpr std::size_t kSettling = 5;
// Fewer steps than this say nothing about a trend.
inline constexpr std::size_t kLeastForTrend = 30;

// Step time: kStepTimeGrows when its trend, with 99 % confidence, adds more than training.growth_percent over the run
// and the machine's own pace does not explain it (then kTimingUnusable); kStepStalls for single steps.
void judge_pace(const Run& run, harness::Context& context);
// Memory after each step: kHostMemoryGrows, kDeviceMemoryGrows.
void judge_memory(const Run& run, harness::Context& context);

}  // namespace suites::training_cases
