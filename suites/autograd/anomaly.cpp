#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <optional>

#include "base/text.hpp"
#include "suites/autograd/cases.hpp"
#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/probes/finite_check.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;

// Anomaly mode tells by TORCH_WARN what it knows of the forward operation; that text is not for the run's output.
class Silent : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// What anomaly mode says to a backward pass from `loss()`; nothing when it is silent. In-place errors pass through. It
// is on in the backward pass only: in the forward pass all that it does is to write down the stack of every node, which
// takes seconds and is read by nobody here.
std::optional<std::string> anomaly(const std::function<at::Tensor()>& loss) {
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard handler(&silent);
  const at::AutoGradMode grad(true);
  const at::Tensor value = loss();
  const torch::autograd::DetectAnomalyGuard guard;
  try {
    value.backward();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("returned nan values") == std::string::npos) throw;
    return base::first_line(text);
  }
  return std::nullopt;
}

// sqrt'(0) * 0: finite forward, NaN in the backward pass of sqrt.
at::Tensor planted_nan() {
  const at::Tensor x = at::zeros({3}).requires_grad_();
  return at::sqrt(x * 1.0).mul(0.0).sum();
}

void report(Context& context, const Step& step, const std::optional<std::string>& said) {
  context.phase("locator");
  const auto found = probes::locate(step.model(), step.tokens, probes::Pass::forward_and_backward);
  harness::Json evidence = {{"anomaly_mode", said.value_or("")}};
  if (found) evidence.update(found->evidence());
  // Where the forward pass is bad already the locator does not go on to the backward pass.
  const bool forward_bad = found && !found->backward;
  const bool agree = forward_bad || said.has_value() == found.has_value();
  context.expect("both witnesses agree about the backward pass", agree,
                 said ? "anomaly mode reports \"" + *said + "\" and the locator sees nothing in the backward pass"
                      : "the locator reports \"" + (found ? found->describe() : "") + "\" and anomaly mode is silent",
                 codes::kAnomalyModeSilent, evidence);
  if (!found) return;
  context.expect("the step is finite", false, found->describe() + (said ? "; anomaly mode: " + *said : ""),
                 code_of(*found), evidence);
}

}  // namespace

void anomaly_mode(Context& context, const Subject& subject, const StepOptions& options) {
  context.phase("planted NaN");
  context.expect("anomaly mode sees a planted NaN", anomaly(planted_nan).has_value(),
                 "anomaly mode is silent about sqrt'(0) * 0, so its silence proves nothing", codes::kAnomalyModeSilent);

  const Step step = make_step(context, subject, options);
  context.phase("step under anomaly mode");
  try {
    bool forward_finite = true;
    const auto said = anomaly([&] {
      at::Tensor loss = step.model().loss(step.tokens);
      forward_finite = loss.isfinite().item<bool>();
      return loss;
    });
    if (said || !forward_finite) return report(context, step, said);
    context.expect("anomaly mode is silent on a training step", true, "", codes::kNonFiniteBackward);
    const bool finite = probes::finite_step(step.model(), step.tokens, probes::Pass::forward_and_backward).finite;
    if (!finite) report(context, step, said);
    if (!options.way.empty()) require_route(step.instance, model_way(options.way));
  } catch (const c10::Error& error) {
    probes::report_inplace_write(context, error);
  }
}

}  // namespace suites::autograd_cases
