#include "nsa/train/run/hang_judge.hpp"

#include <algorithm>

namespace nsa::train {

Liveness HangJudge::look(double now, double cpu_s, const Activity::Snapshot& activity) {
  // Stopped, or the machine slept.
  const bool stood_still = last_look_ < 0 || now - last_look_ > std::clamp(hang_s_ / 2, 0.5, kLongestGap_s);
  last_look_ = now;
  if (stood_still || activity.progress != progress_) last_progress_ = last_work_ = now;
  progress_ = activity.progress;
  // Over at least a tenth of the limit: CPU clocks are coarse.
  if (stood_still || now - sample_time_ >= hang_s_ / 10) {
    if (cpu_s - sample_cpu_ > kIdleShare * (now - sample_time_)) last_work_ = now;
    sample_time_ = now;
    sample_cpu_ = cpu_s;
  }
  const double silent = now - last_progress_, idle = now - last_work_;
  if (std::min(silent, idle) >= hang_s_ || silent >= kBusyFactor * hang_s_) return Liveness::hung;
  const bool slow =
      activity.median_s > 0 && activity.step_s > std::max(kSlowFactor * activity.median_s, kShortestSlow_s);
  if (!slow || told_slow_at_ == activity.steps) return Liveness::fine;
  told_slow_at_ = activity.steps;
  return Liveness::slow;
}

}  // namespace nsa::train
