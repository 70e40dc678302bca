// Repeated timing through Google Benchmark's engine: warm-up, repeats, manual time, one sample a repeat. The library
// writes nothing; the samples come back and statistics decide.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

namespace suites::throughput_cases {

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
[[nodiscard]] std::vector<double> time_repeats(const std::string& name, at::Device device, const TimingPlan& plan,
                                               const std::function<void()>& work);

// Two pieces of work by turns, A B B A, B A A B, ...: a drift of the machine meets both alike. `blocks` of four.
struct Abba {
  std::vector<double> a, b;
  std::vector<double> in_order;  // both, as they were timed
};
[[nodiscard]] Abba time_abba(at::Device device, int blocks, const std::function<void()>& a,
                             const std::function<void()>& b);

// One run of `work`, the device synchronised before and after.
[[nodiscard]] double time_once(at::Device device, const std::function<void()>& work);

void synchronise(at::Device device);

}  // namespace suites::throughput_cases
