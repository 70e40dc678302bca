// A training step that must be finite everywhere: first under the watch (one host synchronisation), and only when that
// reports a second time under the locator. What is found becomes a finding here, so that every suite classifies alike.
#pragma once

#include <optional>
#include <string>

#include "harness/context.hpp"
#include "nsa/model/lm.hpp"
#include "suites/probes/finite_sighting.hpp"

namespace suites::probes {

enum class Pass { forward, forward_and_backward };

// What a model's loss takes: tokens [B,S+1] and, for a packed batch, the documents of all S+1.
struct StepInput {
  at::Tensor tokens;
  nsa::CuSeqlens cu_seqlens;

  StepInput(at::Tensor given_tokens, nsa::CuSeqlens given_cu_seqlens = {})  // a tensor alone is an input
      : tokens(std::move(given_tokens)), cu_seqlens(std::move(given_cu_seqlens)) {}
  [[nodiscard]] RowMap rows(const nsa::Geometry& geometry) const;
};

struct FiniteStep {
  bool finite = false;  // everything that was looked at
  double loss = 0;
  bool forward_finite = false;       // the loss
  std::string parameter;             // the first whose gradient is not finite
  std::optional<NonFinite> sighted;  // by the watch: stages, their gradients, parameters
  // A stage or its gradient is not finite, and neither the loss nor a parameter's gradient shows it.
  [[nodiscard]] bool hidden() const { return sighted && forward_finite && parameter.empty(); }
};
// One pass, and another one where a stage is written in place (StageOverwritten); gradients are cleared before and left
// behind. Pass::forward runs without gradients.
[[nodiscard]] FiniteStep finite_step(nsa::LanguageModelImpl& model, const StepInput& input, Pass pass);

// The same pass again, under the locator. Nothing when it is finite this time.
[[nodiscard]] std::optional<NonFinite> locate(nsa::LanguageModelImpl& model, const StepInput& input, Pass pass);

// What is wrong with a step, located: a finding's code, message and evidence.
struct Diagnosis {
  std::string code, message;
  harness::Json evidence;
};
// Nothing when the step was finite. Otherwise repeats it under the locator: kHiddenNonFinite, kNonFiniteOnce when
// the second pass was finite, else code_of what was found.
[[nodiscard]] std::optional<Diagnosis> diagnose(nsa::LanguageModelImpl& model, const StepInput& input, Pass pass,
                                                const FiniteStep& step);

// Runs finite_step, records the check `name`, and raises a located finding when it fails. `evidence` is added to. An
// in-place write that autograd refuses becomes its own finding. Returns whether all was finite.
bool expect_finite_step(harness::Context& context, const std::string& name, nsa::LanguageModelImpl& model,
                        const StepInput& input, Pass pass, harness::Json evidence = harness::Json::object());

}  // namespace suites::probes
