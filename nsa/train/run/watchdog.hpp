// A thread that looks whether the run makes progress (hang_judge.hpp). SLOW leaves a record; HUNG leaves a record and
// ends the process with ExitCode::hung, since a thread that waits for ever cannot be made to return. What was saved is
// saved. Besides it writes a beat when nothing else was written for a while.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "nsa/train/run/activity.hpp"
#include "nsa/train/run/heartbeat.hpp"

namespace nsa::train {

class Watchdog {
 public:
  static constexpr double kBeat_s = 30;

  struct Options {
    double hang_s = 300;                                    // 0: only beats
    std::filesystem::path folder;                           // for stacks_*.txt
    std::function<void(const std::string& why)> hung = {};  // before the process ends
  };
  Watchdog(Options options, const Activity& activity, Heartbeat& heartbeat);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run();
  void record(std::string_view event, double silent_s);

  Options options_;
  const Activity& activity_;
  Heartbeat& heartbeat_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace nsa::train
