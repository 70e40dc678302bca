// Smoke: one length or one scale at a time, and the pattern that bad lengths make.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "harness/compare.hpp"
#include "suites/codes.hpp"
#include "suites/probes/finite_check.hpp"
#include "suites/probes/fixed_order.hpp"
#include "suites/probes/lengths.hpp"
#include "suites/probes/stages.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/s_sweep/cases.hpp"
#include "suites/s_sweep/swept_model.hpp"

namespace suites::s_sweep_cases {

namespace {

using harness::Case;
using harness::Context;
using harness::Json;
using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t kLayers = 3;

// Lengths between the powers of two, for the pattern: a fault that depends on S modulo a tile shows on some of them.
const Lengths kBetween = {192, 384, 640, 1000, 1280};

SweptModel model_of_the_run(const Context& context, const Subject& subject) {
  return swept_model(context, subject,
                     {.layers = kLayers, .precision = run_precision(context), .flags = subject.flags()});
}

struct LengthPoint {
  std::int64_t S = 1;
  double logit_scale = 1;
};

using Gradients = std::vector<std::pair<std::string, at::Tensor>>;
using Shares = std::map<std::string, double>;

Gradients take_gradients(nsa::LanguageModelImpl& model) {
  Gradients taken;
  for (const auto& parameter : model.named_parameters()) {
    taken.emplace_back(parameter.key(), parameter.value().grad());
    parameter.value().mutable_grad() = at::Tensor();
  }
  return taken;
}

double step_of(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  const at::AutoGradMode gradients(true);
  const at::Tensor loss = model.loss(tokens);
  loss.backward();
  return loss.item<double>();
}

// By how much of its norm each gradient that lies in the model differs from the one that was taken of it before.
Shares differences(const nsa::LanguageModelImpl& model, const Gradients& taken) {
  const auto parameters = model.named_parameters();
  Shares shares;
  for (const auto& [name, wanted] : taken) {
    const at::Tensor& own = parameters[name].grad();
    if (!own.defined() && !wanted.defined()) continue;
    double off = std::numeric_limits<double>::infinity();
    if (own.defined() && wanted.defined()) {
      const double size = wanted.norm().item<double>();
      off = (own - wanted).norm().item<double>() / std::max(size, std::numeric_limits<double>::min());
      if (size == 0 && !own.any().item<bool>()) off = 0;
    }
    shares[name] = off;
  }
  return shares;
}

// The first parameter that differs by more than what another order of sums costs, and by more than `noise`, if it is
// known: what it differs by when the same step is made twice in the same way.
std::pair<std::string, double> first_apart(const Shares& shares, const Shares& noise = {}) {
  constexpr double kSame = 1e-3, kAbove = 4;
  for (const auto& [name, share] : shares) {
    const auto known = noise.find(name);
    const double allowed =
        known == noise.end() || !std::isfinite(known->second) ? kSame : std::max(kSame, kAbove * known->second);
    if (!harness::at_most(share, allowed)) return {name, share};
  }
  return {};
}

// What two steps differ by, and what they differ from themselves by.
struct Apart {
  Shares always, noise;
};

// A step observed and the same step unobserved, both in a fixed order, `kTimes` times. `always` holds the least that
// each gradient differed by: what nobody's observing changes differs every time, and what only sometimes adds in
// another order does not. `noise` is the most that the unobserved step differed from itself by.
Apart differences_every_time(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  constexpr int kTimes = 3;
  const probes::FixedOrder fixed;
  const auto keep = [](Shares& kept, const Shares& shares, auto&& better) {
    for (const auto& [name, share] : shares) {
      const auto [known, added] = kept.emplace(name, share);
      if (!added && (std::isnan(share) || better(share, known->second))) known->second = share;
    }
  };
  Apart apart;
  (void)take_gradients(model);
  for (int i = 0; i < kTimes; ++i) {
    {
      const probes::Observing observing(*model.runtime, [](std::string_view, const at::Tensor&) {});
      (void)step_of(model, tokens);
    }
    const Gradients observed = take_gradients(model);
    (void)step_of(model, tokens);
    keep(apart.always, differences(model, observed), std::less<>());
    const Gradients unobserved = take_gradients(model);
    (void)step_of(model, tokens);
    keep(apart.noise, differences(model, unobserved), std::greater<>());
    if (i + 1 < kTimes) (void)take_gradients(model);
  }
  return apart;
}

// Whoever trains observes nothing: the same step once more, unobserved, must give the same gradients. Those of the
// observed step are left in the model. A GPU may add in another order every time (ATen's gradient of an embedding in
// bf16 moves by 0.2 % of its norm): before it is blamed on the observer it must differ every time in a fixed order, and
// by more than what cannot be fixed.
void expect_the_same_unobserved(Context& context, nsa::LanguageModelImpl& model, const at::Tensor& tokens, Json point) {
  const Gradients observed = take_gradients(model);
  const double value = step_of(model, tokens);
  auto [parameter, share] = first_apart(differences(model, observed));
  if (std::isfinite(value) && !parameter.empty()) {
    point["differs_in_any_order_by"] = reports::number(share);
    context.phase("again, in a fixed order");
    const Apart apart = differences_every_time(model, tokens);
    std::tie(parameter, share) = first_apart(apart.always, apart.noise);
    // Not there where the unobserved step never made this gradient.
    if (const auto noise = apart.noise.find(parameter); noise != apart.noise.end())
      point["differs_from_itself_by"] = reports::number(noise->second);
  }
  point["loss"] = reports::number(value);
  point["parameter"] = parameter;
  point["differs_by"] = reports::number(share);
  context.expect(
      "the same step unobserved", std::isfinite(value) && parameter.empty(),
      std::isfinite(value)
          ? fmt::format("the gradient of {} differs by {:.3g} of its norm when nobody observes the step", parameter,
                        share)
          : fmt::format("the loss is {} when nobody observes the step, and finite when somebody does", value),
      std::isfinite(value) ? codes::kIdentity : codes::kNonFiniteForward, point);
}

void sweep_point(Context& context, const Subject& subject, LengthPoint point) {
  context.phase("build model");
  SweptModel swept = model_of_the_run(context, subject);
  const ScaledLogits scaled(*swept.model().runtime, point.logit_scale);
  const at::Tensor tokens = probes::text_tokens(context, swept.config, {1, point.S});
  context.phase(fmt::format("forward and backward S={}", point.S));
  const Json evidence = {{"S", point.S}, {"logit_scale", point.logit_scale}, {"layers", kLayers}};
  if (probes::expect_finite_step(context, "loss and every gradient are finite", swept.model(), tokens,
                                 probes::Pass::forward_and_backward, evidence))
    expect_the_same_unobserved(context, swept.model(), tokens, evidence);
}

Lengths sorted(Lengths lengths) {
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

Json remainders(const Lengths& lengths, const nsa::Geometry& geometry) {
  Json rows = Json::array();
  for (const std::int64_t S : lengths) {
    Json row = {{"S", S}};
    for (const auto& [symbol, size] : block_sizes(geometry)) row[fmt::format("S mod {} ({})", symbol, size)] = S % size;
    rows.push_back(std::move(row));
  }
  return rows;
}

struct Split {
  Lengths good, bad;
};

void report_pattern(Context& context, const Split& split, const nsa::Geometry& geometry) {
  std::string message = fmt::format("the forward pass is non-finite at S = {} and finite at {}",
                                    fmt::join(split.bad, ", "), fmt::join(split.good, ", "));
  Json evidence = {{"good", split.good}, {"bad", split.bad}};
  if (const auto rule = separating_congruence(split.good, split.bad)) {
    message += fmt::format("; exactly the bad ones have S mod {} = {}", rule->modulus, rule->remainder);
    evidence["rule"] = {{"modulus", rule->modulus}, {"remainder", rule->remainder}};
  }
  evidence["bad_remainders"] = remainders(split.bad, geometry);
  evidence["good_remainders"] = remainders(split.good, geometry);
  context.expect("finiteness does not depend on the length", false, message, codes::kLengthPattern, evidence);
}

void length_pattern(Context& context, const Subject& subject) {
  SweptModel swept = model_of_the_run(context, subject);
  Lengths lengths = context.settings().integers("s_sweep.lengths");
  lengths.insert(lengths.end(), kBetween.begin(), kBetween.end());
  lengths = sorted(std::move(lengths));

  Split split;
  for (const std::int64_t S : lengths) {
    context.phase(fmt::format("forward S={}", S));
    const at::Tensor tokens = probes::text_tokens(context, swept.config, {1, S});
    (probes::finite_step(swept.model(), tokens, probes::Pass::forward).finite ? split.good : split.bad).push_back(S);
  }
  context.fact("lengths", {{"finite", split.good}, {"non_finite", split.bad}});
  if (split.bad.empty()) {
    context.expect("finiteness does not depend on the length", true, "", codes::kLengthPattern);
  } else if (!split.good.empty()) {
    report_pattern(context, split, swept.config.model.nsa);
  } else {  // no pattern in "all of them": say where
    const at::Tensor tokens = probes::text_tokens(context, swept.config, {1, lengths.front()});
    probes::expect_finite_step(context, "the forward pass is finite", swept.model(), tokens, probes::Pass::forward,
                               {{"S", lengths.front()}});
  }
}

Case point_case(const Subject& subject, const std::string& name, LengthPoint point) {
  Case c;
  c.name = name;
  c.params.set("S", std::to_string(point.S));
  if (point.logit_scale != 1) c.params.set("scale", fmt::format("{:g}", point.logit_scale));
  c.run = [subject, point](Context& context) { sweep_point(context, subject, point); };
  return c;
}

}  // namespace

Cases plan_lengths(const Plan& plan) {
  Lengths lengths = plan.settings.integers("s_sweep.lengths");
  const Lengths boundaries = boundary_lengths(plan.geometry, lengths);
  lengths.insert(lengths.end(), boundaries.begin(), boundaries.end());

  Cases cases;
  for (const std::int64_t S : sorted(std::move(lengths))) cases.push_back(point_case(plan.subject, "length", {S, 1}));
  for (const double scale : plan.settings.reals("s_sweep.logit_scales")) {
    if (scale != 1) cases.push_back(point_case(plan.subject, "logits", {2 * plan.geometry.w + 3, scale}));
  }
  Case pattern;
  pattern.name = "length_pattern";
  pattern.run = [subject = plan.subject](Context& context) { length_pattern(context, subject); };
  cases.push_back(std::move(pattern));
  return cases;
}

}  // namespace suites::s_sweep_cases
