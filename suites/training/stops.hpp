// What a step that was stopped, or should have been, means.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "harness/context.hpp"
#include "nsa/model/lm.hpp"
#include "nsa/train/trainer.hpp"

namespace suites::training_cases {

// A deep copy of every parameter, to ask later whether an update was made.
using Weights = std::vector<std::pair<std::string, at::Tensor>>;
[[nodiscard]] Weights copy_weights(nsa::LanguageModelImpl& model);
// The same again without new memory.
void refresh(Weights& weights, nsa::LanguageModelImpl& model);
// The parameters that are no longer bit-equal to `before` (a NaN equals the same NaN).
[[nodiscard]] std::vector<std::string> changed_weights(const Weights& before, nsa::LanguageModelImpl& model);
// The first parameter that holds a NaN or an infinity, or "".
[[nodiscard]] std::string nonfinite_weight(nsa::LanguageModelImpl& model);

[[nodiscard]] bool went_on(const nsa::train::StepReport& report);  // no stop, loss and gradient norm finite

// What the trainer says must be true of the weights: none changed in a step that was stopped, none is NaN ever. Only a
// failure is recorded (there may be hundreds of steps); returns whether all was well.
bool check_guard(const nsa::train::StepReport& report, const Weights& before, nsa::LanguageModelImpl& model,
                 harness::Context& context);
// The finding for a step that did not go on. `what` begins the message ("with FlashAttention-2: ").
void report_stop(const nsa::train::StepReport& report, harness::Context& context, const std::string& what = "",
                 harness::Json evidence = harness::Json::object());

}  // namespace suites::training_cases
