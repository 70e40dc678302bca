#include "suites/probes/finite_check.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/probes/finite_locator.hpp"
#include "suites/probes/finite_watch.hpp"

namespace suites::probes {

namespace {

std::string first_bad_parameter(const FiniteWatch& watch) {
  for (const FiniteWatch::Peak& peak : watch.peaks()) {
    if (peak.parameter && !std::isfinite(peak.largest)) return peak.name;
  }
  return "";
}

// The loss itself, when no stage was seen to be bad.
NonFinite bad_loss(double loss) {
  NonFinite found;
  found.ops_watched = false;
  found.stage.name = "loss";
  found.value = reports::number(loss).get<std::string>();
  return found;
}

FiniteStep watched_step(nsa::LanguageModelImpl& model, const StepInput& input, Pass pass, Look look) {
  const at::AutoGradMode grad(pass == Pass::forward_and_backward);
  model.zero_grad();
  FiniteWatch watch(look);
  at::Tensor loss;
  {
    const Observing observing(*model.runtime, watch.observer());
    loss = model.loss(input.tokens, input.cu_seqlens);
    if (pass == Pass::forward_and_backward) loss.backward();
  }
  if (pass == Pass::forward_and_backward) watch.look_at_gradients(model);

  FiniteStep step;
  step.loss = loss.item<double>();
  step.forward_finite = std::isfinite(step.loss);
  step.sighted = watch.read(input.rows(model.config.nsa));
  if (step.sighted) step.parameter = first_bad_parameter(watch);
  if (!step.sighted && !step.forward_finite) step.sighted = bad_loss(step.loss);
  step.finite = !step.sighted;
  return step;
}

}  // namespace

RowMap StepInput::rows(const nsa::Geometry& geometry) const { return {geometry, tokens.size(1) - 1, cu_seqlens}; }

FiniteStep finite_step(nsa::LanguageModelImpl& model, const StepInput& input, Pass pass) {
  try {
    return watched_step(model, input, pass, Look::in_batches);
  } catch (const StageOverwritten&) {
    return watched_step(model, input, pass, Look::at_once);
  }
}

std::optional<NonFinite> locate(nsa::LanguageModelImpl& model, const StepInput& input, Pass pass) {
  const at::AutoGradMode grad(pass == Pass::forward_and_backward);
  model.zero_grad();
  FiniteLocator locator(input.rows(model.config.nsa));
  const Observing observing(*model.runtime,
                            [&](std::string_view name, const at::Tensor& value) { locator.observe(name, value); });
  const at::Tensor loss = model.loss(input.tokens, input.cu_seqlens);
  if (pass == Pass::forward_and_backward && !locator.forward_is_bad()) {
    locator.begin_backward();
    loss.backward();
  }
  return locator.first();
}

std::optional<Diagnosis> diagnose(nsa::LanguageModelImpl& model, const StepInput& input, Pass pass,
                                  const FiniteStep& step) {
  if (step.finite) return std::nullopt;
  const std::optional<NonFinite> located = locate(model, input, pass);
  const NonFinite& found = located ? *located : *step.sighted;
  Diagnosis diagnosis{std::string(code_of(found)), found.describe(), found.evidence()};
  if (!step.parameter.empty()) diagnosis.evidence["parameter"] = step.parameter;
  if (!located) {
    diagnosis.code = codes::kNonFiniteOnce;
    diagnosis.message += "; the same step was finite when it was repeated";
  } else if (step.hidden()) {
    diagnosis.code = codes::kHiddenNonFinite;
    diagnosis.message += pass == Pass::forward ? "; the loss is finite all the same"
                                               : "; the loss and every parameter's gradient are finite all the same";
  }
  return diagnosis;
}

bool expect_finite_step(harness::Context& context, const std::string& name, nsa::LanguageModelImpl& model,
                        const StepInput& input, Pass pass, harness::Json evidence) {
  try {
    const FiniteStep step = finite_step(model, input, pass);
    context.metric("loss", step.loss, "nat");
    if (step.finite) return context.expect(name, true, "", codes::kNonFiniteForward);

    context.phase("locate");
    const Diagnosis found = diagnose(model, input, pass, step).value();
    evidence.update(found.evidence);
    return context.expect(name, false, found.message, found.code, evidence);
  } catch (const c10::Error& error) {
    const harness::Json refused = evidence;
    (void)report_inplace_write(context, error, evidence);
    // A backward pass that is refused says nothing of the values: the forward pass alone can still be looked at.
    if (pass == Pass::forward_and_backward)
      (void)expect_finite_step(context, name + ", in the forward pass alone", model, input, Pass::forward, refused);
    return false;
  }
}

}  // namespace suites::probes
