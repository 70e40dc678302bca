#include "nsa/train/run/activity.hpp"

#include <cstddef>
#include <vector>

#include "base/clock.hpp"
#include "base/statistics.hpp"

namespace nsa::train {

namespace {

constexpr std::size_t kRemembered = 101, kEnough = 5;

}  // namespace

void Activity::phase(std::string_view name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  now_.phase = name;
  ++now_.progress;
}

void Activity::pulse() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++now_.progress;
}

void Activity::step_begins() {
  const std::lock_guard<std::mutex> lock(mutex_);
  step_began_ = Clock::now();
  in_step_ = true;
  ++now_.progress;
}

void Activity::step_made(std::int64_t steps, double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  now_.steps = steps;
  ++now_.progress;
  in_step_ = false;
  if (seconds <= 0) return;  // where a run goes on, not a step of this process
  durations_.push_back(seconds);
  if (durations_.size() > kRemembered) durations_.pop_front();
  if (durations_.size() < kEnough) return;
  now_.median_s = base::upper_median(std::vector(durations_.begin(), durations_.end()));
}

Activity::Snapshot Activity::look() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Snapshot copy = now_;
  if (in_step_) copy.step_s = base::seconds_since(step_began_);
  return copy;
}

}  // namespace nsa::train
