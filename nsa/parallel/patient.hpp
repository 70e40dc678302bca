// Does one thing after another in a thread of its own, and is patient with each for a while only: with what a silent
// server, or the driver of a GPU that does not end, may never give back. Not for others than nsa/parallel's sources.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace nsa::parallel {

class Patient {
 public:
  Patient();
  ~Patient();  // a thread that is still at something is left behind
  Patient(const Patient&) = delete;
  Patient& operator=(const Patient&) = delete;

  // True when it has been done, false when that took too long. While what was given up still goes on, everything else
  // is refused at once. `what` throws nothing, and owns all that it touches. Thread-safe.
  [[nodiscard]] bool within(std::chrono::milliseconds longest, std::function<void()> what);

 private:
  struct Inside;
  std::shared_ptr<Inside> inside_;  // the thread's too
  std::thread thread_;
};

}  // namespace nsa::parallel
