#include "harness/watchdog.hpp"

#include <stdexcept>

#include "harness/compare.hpp"

namespace harness {

void Watchdog::begin(const WatchLimits& limits, double now) {
  clock_.begin({limits.hang_s, WatchLimits::kBusyFactor}, now);
  begin_ = now;
  limits_ = limits;
}

WatchVerdict Watchdog::look(double now, double cpu_s) {
  const base::HangClock::Verdict verdict = clock_.look(now, cpu_s);
  if (verdict == base::HangClock::Verdict::idle) return WatchVerdict::idle;  // more time would not help
  if (!at_most(elapsed_s(now), limits_.timeout_s)) return WatchVerdict::timeout;
  switch (verdict) {
    case base::HangClock::Verdict::fine:
      return WatchVerdict::fine;
    case base::HangClock::Verdict::idle:
      return WatchVerdict::idle;
    case base::HangClock::Verdict::busy:
      return WatchVerdict::busy;
  }
  throw std::logic_error("HangClock::Verdict outside its enumeration");
}

bool Watchdog::beyond(double now, double times) const {
  return !at_most(elapsed_s(now), times * limits_.timeout_s) ||
         !at_most(clock_.silent_s(now), times * WatchLimits::kBusyFactor * limits_.hang_s);
}

}  // namespace harness
