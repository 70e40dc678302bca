// A stop of the training program, with the seam through which a unit test breaks what it leaves behind.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "harness/context.hpp"

namespace suites::training_cases {

struct StopTrial {
  std::vector<std::string> arguments;  // of nsa-train, but for --out and --resume
  std::filesystem::path folder;        // two runs are made in it; must not exist, is removed
  std::int64_t steps = 8;
  std::int64_t poisoned_step = 5;  // counted from 1, as the program does
  bool bits = true;                // the device repeats itself: compare bits
  // Called with the folder of the stopped run before it is looked at. For tests.
  std::function<void(const std::filesystem::path&)> after_stop = {};
};
// One run undisturbed. One with a NaN in a gradient at the poisoned step: it must end with the exit code of an anomaly,
// a HALT record of this run with type, step and parameter, and a checkpoint of the step before (kHaltRecord,
// kNotResumable); refuse to go on while the record is there; and without it go on to the very end of the first run.
void judge_stop(const StopTrial& trial, harness::Context& context);

}  // namespace suites::training_cases
