#include "nsa/train/run/hang_judge.hpp"

#include <algorithm>

namespace nsa::train {

Liveness HangJudge::look(double now, double cpu_s, const Activity::Snapshot& activity) {
  if (!began_) clock_.begin({hang_s_, kBusyFactor}, now);
  began_ = true;
  if (activity.progress != progress_) clock_.alive(now);
  progress_ = activity.progress;
  if (clock_.look(now, cpu_s) != base::HangClock::Verdict::fine) return Liveness::hung;
  const bool slow =
      activity.median_s > 0 && activity.step_s > std::max(kSlowFactor * activity.median_s, kShortestSlow_s);
  if (!slow || told_slow_at_ == activity.steps) return Liveness::fine;
  told_slow_at_ = activity.steps;
  return Liveness::slow;
}

}  // namespace nsa::train
