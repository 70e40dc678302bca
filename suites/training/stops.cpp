#include "suites/training/stops.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "suites/codes.hpp"

namespace suites::training_cases {

using harness::Context;
using harness::Json;
using nsa::train::StepReport;
using nsa::train::Stop;

namespace {

at::Tensor bits(const at::Tensor& t) { return t.detach().contiguous().flatten().view(at::kByte); }

}  // namespace

Weights copy_weights(nsa::LanguageModelImpl& model) {
  Weights weights;
  for (const auto& parameter : model.named_parameters()) {
    weights.emplace_back(parameter.key(), parameter.value().detach().clone());
  }
  return weights;
}

void refresh(Weights& weights, nsa::LanguageModelImpl& model) {
  const at::NoGradGuard no_grad;
  const auto now = model.named_parameters();
  std::vector<at::Tensor> copies, values;
  for (auto& [name, copy] : weights) {
    copies.push_back(copy);
    values.push_back(now[name].detach());
  }
  at::_foreach_copy_(copies, values);
}

std::vector<std::string> changed_weights(const Weights& before, nsa::LanguageModelImpl& model) {
  const auto now = model.named_parameters();
  std::vector<std::string> changed;
  for (const auto& [name, old] : before) {
    const at::Tensor* value = now.find(name);
    if (value == nullptr || !at::equal(bits(old), bits(*value))) changed.push_back(name);
  }
  return changed;
}

std::string nonfinite_weight(nsa::LanguageModelImpl& model) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  const auto parameters = model.named_parameters();
  for (const auto& parameter : parameters) values.push_back(parameter.value().detach());
  // After every step of a long run: a few launches and one synchronisation. A norm may overflow where no value does.
  const auto wide = values.front().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (at::stack(at::_foreach_norm(values, 2, wide)).isfinite().all().item<bool>()) return "";
  for (const auto& parameter : parameters) {
    if (!parameter.value().detach().isfinite().all().item<bool>()) return parameter.key();
  }
  return "";
}

bool went_on(const StepReport& report) {
  return report.stop == Stop::none && std::isfinite(report.loss) && std::isfinite(report.grad_norm);
}

bool check_guard(const StepReport& report, const Weights& before, nsa::LanguageModelImpl& model, Context& context) {
  const bool bad = !went_on(report);
  const std::vector<std::string> changed = bad ? changed_weights(before, model) : std::vector<std::string>{};
  const std::string nonfinite = nonfinite_weight(model);
  if (changed.empty() && (nonfinite.empty() || bad)) return true;
  return context.expect(
      "weights_kept", false,
      fmt::format("step {}: loss {}, gradient norm {}, stop '{}', yet {} of {} parameters were updated{}", report.step,
                  report.loss, report.grad_norm, nsa::train::to_string(report.stop), changed.size(), before.size(),
                  nonfinite.empty() ? "" : fmt::format("; {} is not finite", nonfinite)),
      codes::kGuardMissed, {{"step", report.step}, {"changed", changed}, {"nonfinite_weight", nonfinite}});
}

void report_stop(const StepReport& report, Context& context, const std::string& what, Json evidence) {
  evidence.update({{"step", report.step},
                   {"stop", nsa::train::to_string(report.stop)},
                   {"anomaly", report.anomaly},
                   {"loss", reports::number(report.loss)},
                   {"lr", reports::number(report.lr)},
                   {"grad_norm", reports::number(report.grad_norm)}});
  const std::string where = fmt::format("{}step {} (lr {:.3g})", what, report.step, report.lr);
  if (report.stop == Stop::nonfinite_loss || !std::isfinite(report.loss)) {
    context.finding(codes::kNonFiniteLoss, fmt::format("{}: loss is {}", where, report.loss), evidence);
  } else if (report.stop == Stop::nonfinite_gradient || !std::isfinite(report.grad_norm)) {
    context.finding(codes::kNonFiniteGradientStep,
                    fmt::format("{}: loss {:.4f} is finite, the gradient of {} is not", where, report.loss,
                                report.anomaly.empty() ? "a parameter that was not named" : report.anomaly),
                    evidence);
  } else if (report.stop == Stop::end_of_data) {
    context.finding(codes::kFirstBatch, fmt::format("{}: the data ends here: {}", where, report.anomaly), evidence);
  } else {
    context.finding(
        codes::kLossDoesNotFall,
        fmt::format("{}: training stopped: {} {}", where, nsa::train::to_string(report.stop), report.anomaly),
        evidence);
  }
}

}  // namespace suites::training_cases
