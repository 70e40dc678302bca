#include "suites/probes/finite_check.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"

namespace suites::probes {

namespace {

// Sets the observer for a scope.
class Observing {
 public:
  Observing(nsa::Runtime& runtime, std::function<void(std::string_view, const at::Tensor&)> observer)
      : runtime_(runtime), before_(std::move(runtime.observe)) {
    runtime_.observe = std::move(observer);
  }
  ~Observing() { runtime_.observe = std::move(before_); }
  Observing(const Observing&) = delete;
  Observing& operator=(const Observing&) = delete;

 private:
  nsa::Runtime& runtime_;
  std::function<void(std::string_view, const at::Tensor&)> before_;
};

std::string first_bad_gradient(const nsa::LanguageModelImpl& model) {
  std::vector<std::string> names;
  std::vector<at::Tensor> fine;
  for (const auto& parameter : model.named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    if (!gradient.defined()) continue;
    names.push_back(parameter.key());
    fine.push_back(gradient.isfinite().all());
  }
  if (names.empty()) return "";
  const at::Tensor all = at::stack(fine).cpu();  // the one synchronisation
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!all[static_cast<std::int64_t>(i)].item<bool>()) return names[i];
  }
  return "";
}

NonFinite not_located(const FiniteStep& step) {
  NonFinite unknown;
  unknown.backward = step.forward_finite;
  unknown.stage.name = step.forward_finite ? step.parameter : "loss";
  return unknown;
}

}  // namespace

FiniteStep finite_step(nsa::LanguageModelImpl& model, const at::Tensor& tokens, Pass pass) {
  const at::AutoGradMode grad(pass == Pass::forward_and_backward);
  model.zero_grad();
  FiniteStep step;
  const at::Tensor loss = model.loss(tokens);
  if (pass == Pass::forward_and_backward) {
    loss.backward();
    step.parameter = first_bad_gradient(model);
  }
  step.loss = loss.item<double>();
  step.forward_finite = std::isfinite(step.loss);
  step.finite = step.forward_finite && step.parameter.empty();
  return step;
}

std::optional<NonFinite> locate(nsa::LanguageModelImpl& model, const at::Tensor& tokens, Pass pass) {
  const at::AutoGradMode grad(pass == Pass::forward_and_backward);
  model.zero_grad();
  FiniteLocator locator(model.config.nsa, tokens.size(1) - 1);
  const Observing observing(*model.runtime,
                            [&](std::string_view name, const at::Tensor& value) { locator.observe(name, value); });
  const at::Tensor loss = model.loss(tokens);
  if (pass == Pass::forward_and_backward && !locator.forward_is_bad()) {
    locator.begin_backward();
    loss.backward();
  }
  return locator.first();
}

std::string_view code_of(const NonFinite& found) {
  if (found.only_empty_rows) return codes::kEmptyRowNan;
  return found.backward ? codes::kNonFiniteBackward : codes::kNonFiniteForward;
}

bool expect_finite_step(harness::Context& context, const std::string& name, nsa::LanguageModelImpl& model,
                        const at::Tensor& tokens, Pass pass, harness::Json evidence) {
  try {
    const FiniteStep step = finite_step(model, tokens, pass);
    context.metric("loss", step.loss, "nat");
    if (step.finite) return context.expect(name, true, "", codes::kNonFiniteForward);

    context.phase("locate");
    const NonFinite found = locate(model, tokens, pass).value_or(not_located(step));
    evidence.update(found.evidence());
    if (!step.parameter.empty()) evidence["parameter"] = step.parameter;
    return context.expect(name, false, found.describe(), code_of(found), evidence);
  } catch (const c10::Error& error) {
    return report_inplace_write(context, error, evidence);
  }
}

}  // namespace suites::probes
