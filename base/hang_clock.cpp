#include "base/hang_clock.hpp"

#include <algorithm>

namespace base {

double HangClock::look_s(double hang_s) { return std::clamp(hang_s / 20, 0.02, 1.5); }
double HangClock::late_s(double hang_s) { return std::clamp(hang_s / 2, 0.5, 6.0); }

void HangClock::begin(const Limits& limits, double now) {
  *this = {};
  limits_ = limits;
  last_look_ = last_life_ = last_busy_ = now;
}

HangClock::Verdict HangClock::look(double now, double cpu_s) {
  if (const double gap = now - last_look_; gap > late_s(limits_.hang_s)) {
    // A sign of life since the last look is moved no further than to now.
    for (double* time : {&last_life_, &last_busy_}) *time = std::min(now, *time + gap);
    stood_still_ += gap;
    sample_time_ = -1;
  }
  last_look_ = now;
  // Over at least a tenth of the limit: CPU clocks are coarse. A first sample proves nothing. CPU time can fall when a
  // descendant ends: that is movement too.
  if (sample_time_ < 0 || now - sample_time_ >= limits_.hang_s / 10) {
    const double moved = cpu_s - sample_cpu_;
    if (sample_time_ >= 0 && (moved < 0 || moved >= kIdleShare * (now - sample_time_))) last_busy_ = now;
    sample_time_ = now;
    sample_cpu_ = cpu_s;
  }
  // Written so that a time that is no number is a hang.
  if (!(now - last_life_ <= limits_.busy_factor * limits_.hang_s)) return Verdict::busy;
  if (!(now - std::max(last_life_, last_busy_) <= limits_.hang_s)) return Verdict::idle;
  return Verdict::fine;
}

}  // namespace base
