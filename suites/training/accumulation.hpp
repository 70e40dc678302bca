// Accumulation, with the seam through which a unit test makes it wrong.
#pragma once

#include <vector>

#include "harness/context.hpp"
#include "nsa/train/trainer.hpp"
#include "suites/training/run.hpp"

namespace suites::training_cases {

// The steps of the same rows taken at once, and in `parts` batches. Same losses, norms, rates and counts of tokens
// (kAccumulation); the rates of both are those of `config`, whose steps are optimizer steps (kLearningRate).
struct AccumulatedSteps {
  std::vector<nsa::train::StepReport> at_once, in_parts;
};
void judge_accumulation(const AccumulatedSteps& steps, const nsa::TrainConfig& config, harness::Context& context);

}  // namespace suites::training_cases
