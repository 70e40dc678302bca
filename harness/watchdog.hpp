// Decides when a worker is hung. A hang is the absence of progress, not of speed: neither a word (any event counts) nor
// CPU time for `hang_s`; or CPU time without a word for four times that; or an absolute limit. Time in which the
// watcher itself did not run (SIGSTOP, a container that is paused, a machine that sleeps) counts for none of them: a
// look that comes much later than it was due tells it. A pure state machine.
#pragma once

namespace harness {

struct WatchLimits {
  double hang_s = 30;                         // silent and idle
  double timeout_s = 120;                     // absolute, from begin()
  static constexpr double kBusyFactor = 4;    // silent but busy: kBusyFactor * hang_s
  [[nodiscard]] double look_s() const;        // how often to look
  [[nodiscard]] double late_s() const;        // between two looks: from here on the watcher did not run meanwhile
  static constexpr double kIdleShare = 0.02;  // of one core: a background thread's ticks are not work
};

enum class WatchVerdict { fine, idle, busy, timeout };

class Watchdog {
 public:
  // Times are seconds of one monotonic clock; cpu_s is the CPU time of the process tree.
  void begin(const WatchLimits& limits, double now);
  void heard(double now) { last_word_ = now; }
  [[nodiscard]] WatchVerdict look(double now, double cpu_s);
  [[nodiscard]] double silent_s(double now) const { return now - last_word_; }
  [[nodiscard]] double stood_still_s() const { return stood_still_; }  // since begin()

 private:
  WatchLimits limits_;
  double begin_ = 0, last_word_ = 0, last_busy_ = 0;
  double sample_time_ = -1, sample_cpu_ = 0;
  double last_look_ = -1, stood_still_ = 0;
};

}  // namespace harness
