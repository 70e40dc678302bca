// A training step that must be finite everywhere: a cheap check first (one host synchronisation), and only when it
// fails a second pass with the locator. What is found becomes a finding here, so that every suite classifies alike.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "harness/context.hpp"
#include "nsa/model/lm.hpp"
#include "suites/probes/finite_locator.hpp"

namespace suites::probes {

enum class Pass { forward, forward_and_backward };

struct FiniteStep {
  bool finite = false;
  double loss = 0;
  bool forward_finite = false;
  std::string parameter;  // the first whose gradient is not finite
};
// One pass over tokens [B,S+1]; gradients are cleared before and left behind. Pass::forward runs without gradients.
[[nodiscard]] FiniteStep finite_step(nsa::LanguageModelImpl& model, const at::Tensor& tokens, Pass pass);

// The same pass again, watched. Nothing when it is finite this time.
[[nodiscard]] std::optional<NonFinite> locate(nsa::LanguageModelImpl& model, const at::Tensor& tokens, Pass pass);

// The code that says most about it: kEmptyRowNan, kNonFiniteForward or kNonFiniteBackward.
[[nodiscard]] std::string_view code_of(const NonFinite& found);

// Runs finite_step, records the check `name`, and raises a located finding when it fails. `evidence` is added to. An
// in-place write that autograd refuses becomes its own finding. Returns whether all was finite.
bool expect_finite_step(harness::Context& context, const std::string& name, nsa::LanguageModelImpl& model,
                        const at::Tensor& tokens, Pass pass, harness::Json evidence = harness::Json::object());

}  // namespace suites::probes
