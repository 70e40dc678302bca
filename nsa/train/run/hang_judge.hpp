// Tells HUNG from SLOW. Hung is the absence of progress, not of speed: no sign of life and no CPU time for hang_s, or
// no sign of life for kBusyFactor times that in spite of CPU time (a host that waits for a GPU in a loop looks busy).
// Slow: a step takes kSlowFactor times the median of those before it, and goes on. A pure state machine.
#pragma once

#include <cstdint>

#include "nsa/train/run/activity.hpp"

namespace nsa::train {

enum class Liveness { fine, slow, hung };

class HangJudge {
 public:
  static constexpr double kBusyFactor = 10, kSlowFactor = 5;
  static constexpr double kIdleShare = 0.02;    // of one core: a background thread's ticks are no work
  static constexpr double kShortestSlow_s = 1;  // shorter steps may stumble
  static constexpr double kLongestGap_s = 10;   // between two looks; beyond it this process stood still itself

  explicit HangJudge(double hang_s) : hang_s_(hang_s) {}
  // Seconds of one monotonic clock, CPU seconds of the process. Slow is said once a step.
  [[nodiscard]] Liveness look(double now, double cpu_s, const Activity::Snapshot& activity);
  [[nodiscard]] double silent_s(double now) const { return now - last_progress_; }

 private:
  double hang_s_;
  std::uint64_t progress_ = 0;
  double last_look_ = -1, last_progress_ = 0, last_work_ = 0;
  double sample_time_ = 0, sample_cpu_ = 0;
  std::int64_t told_slow_at_ = -1;  // steps made
};

}  // namespace nsa::train
