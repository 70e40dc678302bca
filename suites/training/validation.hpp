// Evaluation while training: on data that training does not read, by the product's own evaluate().
#pragma once

#include <ATen/core/Tensor.h>

#include "harness/context.hpp"
#include "suites/training/run.hpp"

namespace suites::training_cases {

// Before and after training, and what was read for it: [batches, B, S+1].
struct Validation {
  double before = 0, after = 0;  // nat
  at::Tensor tokens;
};

// The loss on the first batches of the validation split, as the product says it. Held against the same loss computed
// here from the logits, and the weights must be what they were (kValidationLoss). `tokens` receives what was read.
[[nodiscard]] double validation_loss(nsa::LanguageModel model, const RunPlan& plan, at::Tensor& tokens,
                                     harness::Context& context);

// It falls with the training loss and stays near it (kValidationLoss), and training has not read it (kSplitOverlap).
void check_validation(const Run& run, const Validation& validation, harness::Context& context);
// Share of the stretches of 48 tokens in `validation` that stand in `training` too; rows are the last dimension.
[[nodiscard]] double share_seen(const at::Tensor& training, const at::Tensor& validation);

}  // namespace suites::training_cases
