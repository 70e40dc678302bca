#include "harness/watchdog.hpp"

#include <stdexcept>

#include "harness/compare.hpp"

namespace harness {

void Watchdog::begin(const WatchLimits& limits, double now) {
  clock_.begin({limits.hang_s, WatchLimits::kBusyFactor}, now);
  begin_ = now;
  timeout_s_ = limits.timeout_s;
}

WatchVerdict Watchdog::look(double now, double cpu_s) {
  const base::HangClock::Verdict verdict = clock_.look(now, cpu_s);
  if (!at_most(now - begin_ - clock_.stood_still_s(), timeout_s_)) return WatchVerdict::timeout;
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

}  // namespace harness
