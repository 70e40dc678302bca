// Repeated timing through Google Benchmark's engine: warm-up, repeats, manual time, one sample a repeat. The library
// writes nothing; the samples come back and statistics decide.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "base/clock.hpp"

namespace suites::throughput_cases {

// Seconds since some moment. A test hands in a clock that it turns itself, and so what is judged is the judgement and
// not the machine that the test runs on.
using Clock = std::function<double()>;

// Takes times: the device is synchronised before each look at the clock.
struct Stopwatch {
  Stopwatch(at::Device timed, Clock read = base::steady_seconds) : device(timed), clock(std::move(read)) {}
  Stopwatch(at::DeviceType type) : Stopwatch(at::Device(type)) {}
  at::Device device;
  Clock clock;
};

struct TimingPlan {
  int warm_up = 2;
  int repeats = 5;      // wanted
  int least = 3;        // made even when the budget is spent
  double budget_s = 6;  // of all repeats together; a slow subject is repeated less often
  // Of all repeats together, when not even `least` of them fit: then fewer are made, but one at least. A subject that
  // takes seconds where it should take milliseconds needs no interval.
  double patience_s = 20;
};

// Runs `work` (which may throw) and returns the seconds of each repeat; the device is synchronised before and after
// each. `name` is any text. Not reentrant: one timing at a time in a process.
[[nodiscard]] std::vector<double> time_repeats(const std::string& name, const Stopwatch& stopwatch,
                                               const TimingPlan& plan, const std::function<void()>& work);

// Two pieces of work by turns, A B B A, B A A B, ...: a drift of the machine meets both alike. `blocks` of four.
struct Abba {
  std::vector<double> a, b;
  std::vector<double> in_order;  // both, as they were timed
};
[[nodiscard]] Abba time_abba(const Stopwatch& stopwatch, int blocks, const std::function<void()>& a,
                             const std::function<void()>& b);

// One run of `work`, the device synchronised before and after.
[[nodiscard]] double time_once(const Stopwatch& stopwatch, const std::function<void()>& work);

void synchronise(at::Device device);

}  // namespace suites::throughput_cases
