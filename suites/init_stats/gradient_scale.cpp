// The size of gradients at step 0: at the loss from closed forms, from there down the residual stream from layer to
// layer, and of each kind of parameter over the layers.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "harness/compare.hpp"
#include "suites/codes.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/init_stats/law.hpp"
#include "suites/init_stats/scale_law.hpp"
#include "suites/init_stats/tokens.hpp"
#include "suites/probes/autograd_errors.hpp"

namespace suites::init_checks {

namespace {

using namespace init_laws;

// Note [Residual gradients]
// Going down one layer the gradient of the residual stream, g, becomes g + J'g with the Jacobian of the two branches.
// With the initial laws the MLP's J'g has a mean square of (1/12) * E silu'(h)^2 * (4/3) = 0.036 of g's (fc2: 1/(3*4)
// a channel; fc1: 4*dim rows of variance 1/(3*dim)), and is uncorrelated with g because its weights are drawn
// independently; attention's is smaller, because its gates are 1/3 and its weights are spread over many keys. So the
// RMS grows by about 2 % a layer and never shrinks but by chance.
constexpr double kShrink = 0.9, kGrow = 1.2;
// RMS of one kind of weight over the layers, largest to smallest. Its factors are the gradient of the residual stream
// (above), inputs of RMS 1, and what attention makes of it, which is alike in all layers.
constexpr double kLayerSpread = 4;
constexpr std::int64_t kSmallest = 64;  // values that a parameter must have for its RMS to say something

struct Stage {
  at::Tensor value, gradient;  // [rows,width], detached
};
using GradientStages = std::map<std::string, Stage>;

std::vector<std::string> residual_names(std::int64_t layers) {
  std::vector<std::string> names = {"embedding"};
  for (std::int64_t i = 0; i < layers; ++i) names.push_back(fmt::format("layers.{}", i));
  return names;
}

// One training step, with value and gradient of the residual stream, the norm and the logits.
GradientStages gradients_of(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  const at::AutoGradMode grad(true);
  GradientStages stages;
  for (const std::string& name : residual_names(model.config.n_layers)) stages[name];
  stages["norm"];
  stages["logits"];
  model.zero_grad();
  model.runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    const auto found = stages.find(std::string(name));
    if (found == stages.end()) return;
    Stage* stage = &found->second;
    stage->value = value.detach().flatten(0, 1);
    if (value.requires_grad())
      value.register_hook([stage](const at::Tensor& g) { stage->gradient = g.detach().flatten(0, 1); });
  };
  const at::Tensor loss = model.loss(tokens);
  model.runtime->observe = nullptr;
  loss.backward();
  return stages;
}

class Judge {
 public:
  Judge(Context& context, const ModelOptions& options, const GradientStages& stages)
      : context_(context),
        dim_(options.config.dim),
        rounding_(rounding_of(options.precision)),
        stages_(stages),
        names_(residual_names(options.config.n_layers)) {}

  // The gradient of the mean cross-entropy by the logits is (softmax - one-hot) / rows: known exactly.
  void logits(const at::Tensor& targets) {
    const Stage& logits = stages_.at("logits");
    by_logits_ = at::softmax(logits.value.to(at::kDouble), -1);
    by_logits_.scatter_add_(1, targets.unsqueeze(1), at::full_like(targets.unsqueeze(1), -1, at::kDouble));
    by_logits_ /= static_cast<double>(targets.size(0));
    expect("logits", mean_square(logits.gradient), exactly(mean_square(by_logits_)));
  }
  // Through the head: a Linear the other way.
  void norm() {
    const ScaleLaw law = linear_law(by_logits_, dim_, 1.0 / static_cast<double>(3 * dim_));
    expect("norm", mean_square(stages_.at("norm").gradient), law);
  }
  // Through the final norm with weights 1: known exactly from its own gradient.
  void last_layer() {
    const Stage& last = stages_.at(names_.back());
    const at::Tensor x = last.value.to(at::kDouble), g = stages_.at("norm").gradient.to(at::kDouble), n = normed(x);
    const at::Tensor rms = (x.square().mean(-1, true) + 1e-6).sqrt();
    expect(names_.back(), mean_square(last.gradient), exactly(mean_square((g - n * (g * n).mean(-1, true)) / rms)));
  }
  void residual_stream() {
    for (std::size_t i = names_.size() - 1; i > 0; --i) {
      const double above = std::sqrt(mean_square(stages_.at(names_[i]).gradient));
      const double here = std::sqrt(mean_square(stages_.at(names_[i - 1]).gradient));
      note(names_[i - 1], here, above * kShrink, above * kGrow);
    }
  }
  // By role of parameter: RMS of the gradient in every layer.
  void parameters(const std::map<std::string, std::map<std::string, double>>& by_role) {
    for (const auto& [role, layers] : by_role) {
      double low = INFINITY, high = 0;
      for (const auto& [name, rms] : layers) {
        low = std::min(low, rms);
        high = std::max(high, rms);
      }
      if (layers.size() < 2 || high == 0) continue;  // nothing to compare; silent parameters are autograd's question
      note(role + ": largest / smallest over layers", high / low, 1, kLayerSpread);
    }
  }

  void sentence() {
    context_.fact("gradient RMS", table_);
    context_.expect("gradients", off_.empty(),
                    fmt::format("{} of {} figures are not what the initial laws give; the first: {}", off_.size(),
                                table_.size(), first_),
                    codes::kGradientScale, {{"off", off_}, {"false_alarm", kFalseAlarm}});
  }

 private:
  Context& context_;
  std::int64_t dim_;
  double rounding_;
  const GradientStages& stages_;
  std::vector<std::string> names_;  // embedding, layers.0, ...
  at::Tensor by_logits_;            // [rows,vocab] fp64
  Json table_ = Json::object(), off_ = Json::array();
  std::string first_;

  static ScaleLaw exactly(double expected) {
    ScaleLaw law;
    law.expected = expected;
    law.down = 0.97;
    law.up = 1.03;
    return law;
  }
  void expect(const std::string& what, double measured, const ScaleLaw& law) {
    const ScaleBounds b = bounds(law, kFalseAlarm / 2, rounding_);
    note("gradient at " + what, std::sqrt(measured), std::sqrt(b.low), std::sqrt(b.high));
  }
  void note(const std::string& what, double value, double low, double high) {
    const Json row = {
        {"value", reports::number(value)}, {"low", reports::number(low)}, {"high", reports::number(high)}};
    table_[what] = row;
    if (harness::within(value, low, high)) return;
    if (first_.empty()) first_ = fmt::format("{} is {:.4g}, allowed {:.4g} to {:.4g}", what, value, low, high);
    off_.push_back({{"what", what}, {"figures", row}});
  }
};

std::map<std::string, std::map<std::string, double>> parameter_gradients(const ModelOptions& options,
                                                                         const nsa::LanguageModelImpl& model) {
  std::map<std::string, std::map<std::string, double>> by_role;
  const auto parameters = model.named_parameters();
  for (const Expected& e : expected_parameters(options.config)) {
    const at::Tensor* p = parameters.find(e.name);
    if (p == nullptr || p->numel() < kSmallest) continue;
    by_role[e.role][e.name] = p->grad().defined() ? std::sqrt(mean_square(p->grad())) : 0;
  }
  return by_role;
}

}  // namespace

void gradient_scale(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model) {
  const at::Tensor tokens = random_tokens(context, options, /*extra=*/1);
  context.phase("step");
  GradientStages stages;
  try {
    stages = gradients_of(model, tokens);
  } catch (const c10::Error& error) {
    probes::report_inplace_write(context, error);
    return;
  }
  for (const auto& [name, stage] : stages) {
    if (!stage.value.isfinite().all().item<bool>()) {
      context.finding(codes::kNonFiniteForward, fmt::format("{} is not finite", name), {{"stage", name}});
      return;
    }
    if (stage.gradient.defined() && stage.gradient.isfinite().all().item<bool>()) continue;
    context.finding(
        stage.gradient.defined() ? codes::kNonFiniteBackward : codes::kGraphBreak,
        fmt::format("the gradient at {} {}", name, stage.gradient.defined() ? "is not finite" : "is missing"),
        {{"stage", name}});
    return;
  }
  context.phase("laws");
  Judge judge(context, options, stages);
  judge.logits(tokens.flatten().slice(0, 1));
  judge.norm();
  judge.last_layer();
  judge.residual_stream();
  judge.parameters(parameter_gradients(options, model));
  judge.sentence();
}

}  // namespace suites::init_checks
