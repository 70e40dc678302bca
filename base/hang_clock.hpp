// Tells a hang: the absence of progress, not of speed. No sign of life and no CPU time for hang_s; or CPU time without
// a sign of life for busy_factor times that (what waits for a GPU in a loop looks busy). Time in which the watcher
// itself did not run (SIGSTOP, a container that is paused, a machine that sleeps) counts for neither: a look that comes
// much later than it was due tells it. A pure state machine.
#pragma once

namespace base {

class HangClock {
 public:
  enum class Verdict { fine, idle, busy };
  struct Limits {
    double hang_s = 30;      // silent and idle
    double busy_factor = 4;  // silent but busy: this times hang_s
  };
  static constexpr double kIdleShare = 0.02;  // of one core: a background thread's ticks are not work

  [[nodiscard]] static double look_s(double hang_s);  // how often to look
  [[nodiscard]] static double late_s(double hang_s);  // between two looks: from here on the watcher did not run

  // Times are seconds of one monotonic clock; cpu_s is the CPU time of whom it watches.
  void begin(const Limits& limits, double now);
  void alive(double now) { last_life_ = now; }
  [[nodiscard]] Verdict look(double now, double cpu_s);
  [[nodiscard]] double silent_s(double now) const { return now - last_life_; }
  [[nodiscard]] double stood_still_s() const { return stood_still_; }  // since begin()

 private:
  Limits limits_;
  double last_look_ = 0, last_life_ = 0, last_busy_ = 0;
  double sample_time_ = -1, sample_cpu_ = 0;
  double stood_still_ = 0;
};

}  // namespace base
