// Tells HUNG from SLOW. Hung is the absence of progress (base/hang_clock.hpp). Slow: a step takes kSlowFactor times the
// median of those before it, and goes on. A pure state machine.
#pragma once

#include <cstdint>

#include "base/hang_clock.hpp"
#include "nsa/train/run/activity.hpp"

namespace nsa::train {

enum class Liveness { fine, slow, hung };

class HangJudge {
 public:
  static constexpr double kBusyFactor = 10, kSlowFactor = 5;
  static constexpr double kShortestSlow_s = 1;  // shorter steps may stumble

  explicit HangJudge(double hang_s) : hang_s_(hang_s) {}
  // Seconds of one monotonic clock, CPU seconds of the process. Slow is said once a step.
  [[nodiscard]] Liveness look(double now, double cpu_s, const Activity::Snapshot& activity);
  [[nodiscard]] double silent_s(double now) const { return clock_.silent_s(now); }

 private:
  double hang_s_;
  std::uint64_t progress_ = 0;
  bool began_ = false;
  base::HangClock clock_;
  std::int64_t told_slow_at_ = -1;  // steps made
};

}  // namespace nsa::train
