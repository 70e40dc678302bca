// Resume, with the seams through which a unit test loses something on the way.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "harness/context.hpp"
#include "nsa/train/state.hpp"
#include "suites/subject.hpp"
#include "suites/training/run.hpp"

namespace suites::training_cases {

struct ResumeTrial {
  RunPlan plan;                  // train.steps: the whole run
  std::int64_t cut_after = 3;    // steps made before the checkpoint
  std::filesystem::path folder;  // for the checkpoint; must not exist, is removed
  // The data of each run, and what becomes of the state between file and trainer. For tests.
  std::function<std::unique_ptr<nsa::train::BatchStream>(const RunPlan&)> open;
  std::function<void(nsa::train::TrainState&)> on_the_way = {};
};
// Runs it three ways (whole, up to the cut, from the file on) and compares: the state right after loading with the one
// that was saved, then every batch, random number, loss, rate and norm, and the final state (kResumeWeights,
// kResumeOptimizer, kResumeRandom, kResumeData, kNotResumable). Where the whole run does not repeat itself bit for bit
// (kTrainingRepeats), losses after the cut are judged within the spread of two whole runs.
void judge_resume(const Subject& subject, const ResumeTrial& trial, harness::Context& context);

// The types of all parameters, copies and moments of a state are those that the configuration
// asks for (kTrainingDtype).
void check_types(const nsa::train::TrainState& state, const nsa::TrainConfig& config, harness::Context& context);

}  // namespace suites::training_cases
