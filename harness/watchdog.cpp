#include "harness/watchdog.hpp"

#include <algorithm>

#include "harness/compare.hpp"

namespace harness {

double WatchLimits::look_s() const { return std::clamp(hang_s / 20, 0.02, 1.5); }
double WatchLimits::late_s() const { return std::clamp(hang_s / 2, 0.5, 6.0); }

void Watchdog::begin(const WatchLimits& limits, double now) {
  limits_ = limits;
  if (last_look_ < 0) last_look_ = now;
  stood_still_ = 0;
  begin_ = last_word_ = last_busy_ = now;
  sample_time_ = -1;
}

WatchVerdict Watchdog::look(double now, double cpu_s) {
  if (const double gap = now - last_look_; gap > limits_.late_s()) {
    // What happened since the last look, a word or a begin, is moved no further than to now.
    for (double* time : {&begin_, &last_word_, &last_busy_}) *time = std::min(now, *time + gap);
    stood_still_ += gap;
    sample_time_ = -1;
  }
  last_look_ = now;
  // A first sample proves nothing. CPU time can fall when a descendant ends: that is movement too.
  if (sample_time_ >= 0 && now > sample_time_) {
    const double moved = cpu_s - sample_cpu_;
    if (moved < 0 || moved >= WatchLimits::kIdleShare * (now - sample_time_)) last_busy_ = now;
  }
  sample_time_ = now;
  sample_cpu_ = cpu_s;

  if (!at_most(now - begin_, limits_.timeout_s)) return WatchVerdict::timeout;
  if (!at_most(now - last_word_, WatchLimits::kBusyFactor * limits_.hang_s)) return WatchVerdict::busy;
  if (!at_most(now - std::max(last_word_, last_busy_), limits_.hang_s)) return WatchVerdict::idle;
  return WatchVerdict::fine;
}

}  // namespace harness
