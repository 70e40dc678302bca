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
};

// Runs `work` (which may throw) and returns the seconds of each repeat; the device is synchronised before and after
// each. `name` is any text. Not reentrant: one timing at a time in a process.
[[nodiscard]] std::vector<double> time_repeats(const std::string& name, at::Device device, const TimingPlan& plan,
                                               const std::function<void()>& work);

void synchronise(at::Device device);

}  // namespace suites::throughput_cases
