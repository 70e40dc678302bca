// What a run is doing at this moment, told by the thread that trains and looked at by others.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

namespace nsa::train {

class Activity {
 public:
  // Something new begins, or goes on: progress.
  void phase(std::string_view name);
  void pulse();  // progress within a phase
  void step_begins();
  void step_made(std::int64_t steps, double seconds);

  struct Snapshot {
    std::string phase;
    std::int64_t steps = 0;      // made so far
    std::uint64_t progress = 0;  // grows with every sign of life
    double step_s = 0;           // how long the step has been going on; 0 between steps
    double median_s = 0;         // of the last steps; 0 before the fifth
  };
  [[nodiscard]] Snapshot look() const;

 private:
  using Clock = std::chrono::steady_clock;

  mutable std::mutex mutex_;
  Snapshot now_;
  Clock::time_point step_began_{};
  bool in_step_ = false;
  std::deque<double> durations_;
};

}  // namespace nsa::train
