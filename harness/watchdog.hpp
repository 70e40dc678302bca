// Decides when a worker is hung (base/hang_clock.hpp: any event is a sign of life), or has been at its case for longer
// than an absolute limit, which the time in which the watcher did not run does not count for either. A pure state
// machine.
#pragma once

#include "base/hang_clock.hpp"

namespace harness {

struct WatchLimits {
  double hang_s = 30;                       // silent and idle
  double timeout_s = 120;                   // absolute, from begin()
  static constexpr double kBusyFactor = 4;  // silent but busy: kBusyFactor * hang_s
  static constexpr double kPatience = 8;  // with a worker that others keep from the CPUs: at most so many times as long
};

enum class WatchVerdict { fine, idle, busy, timeout };

class Watchdog {
 public:
  // Times are seconds of one monotonic clock; cpu_s is the CPU time of the process tree.
  void begin(const WatchLimits& limits, double now);
  void heard(double now) { clock_.alive(now); }
  [[nodiscard]] WatchVerdict look(double now, double cpu_s);
  // Whether the worker has used up the absolute limit, or that of the silent and busy, when each is `times` as long:
  // one that others keep from the CPUs has more time.
  [[nodiscard]] bool beyond(double now, double times) const;
  [[nodiscard]] double silent_s(double now) const { return clock_.silent_s(now); }
  [[nodiscard]] double stood_still_s() const { return clock_.stood_still_s(); }  // since begin()

 private:
  [[nodiscard]] double elapsed_s(double now) const { return now - begin_ - clock_.stood_still_s(); }

  base::HangClock clock_;
  WatchLimits limits_;
  double begin_ = 0;
};

}  // namespace harness
