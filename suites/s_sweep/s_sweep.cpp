// s_sweep: no length and no scale of the logits gives a non-finite value, forward or backward.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "suites/codes.hpp"
#include "suites/probes/finite_check.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/program.hpp"
#include "suites/s_sweep/lengths.hpp"

namespace suites {

namespace {

using harness::Case;
using harness::Context;
using harness::Json;
using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t kLayers =
    2;  // what a second layer sees has passed a first one; more add time, not kinds of rows

// Lengths between the powers of two, for the pattern: a fault that depends on S modulo a tile shows on some of them.
const Lengths kBetween = {192, 384, 640, 1000, 1280};

struct Prepared {
  nsa::Config config;
  Instance instance;
};

Prepared prepare(const Context& context, const Subject& subject) {
  Prepared prepared{subject.config(context), {}};
  prepared.config.model.n_layers = kLayers;
  ModelOptions options;
  options.config = prepared.config.model;
  options.flags = subject.flags();
  options.precision = context.cuda() ? nsa::Precision::bf16 : nsa::Precision::fp32;
  options.device = device_of(context);
  options.seed = context.seed("model");
  prepared.instance = subject.model(options);
  return prepared;
}

// Multiplies the queries that attention and selection see, so that every branch's logits grow by `scale`. The gate,
// which reads the queries earlier, stays as it is.
void scale_logits(nsa::Runtime& runtime, double scale) {
  runtime.ops = [inner = runtime.ops, scale](const nsa::Call& call) {
    nsa::Ops ops = inner(call);
    const auto scaled = [scale](auto function) {
      return [function, scale](auto args) {
        args.q = args.q * scale;
        return function(args);
      };
    };
    ops.attend_compressed = scaled(ops.attend_compressed);
    ops.select = scaled(ops.select);
    ops.attend_selected = scaled(ops.attend_selected);
    ops.attend_window = scaled(ops.attend_window);
    return ops;
  };
}

struct Point {
  std::int64_t S = 1;
  double logit_scale = 1;
};

void sweep_point(Context& context, const Subject& subject, Point point) {
  context.phase("build model");
  Prepared prepared = prepare(context, subject);
  nsa::LanguageModelImpl& model = *prepared.instance.model;
  if (point.logit_scale != 1) scale_logits(*model.runtime, point.logit_scale);
  const at::Tensor tokens = probes::text_tokens(context, prepared.config, {1, point.S});
  context.phase(fmt::format("forward and backward S={}", point.S));
  probes::expect_finite_step(context, "loss and every gradient are finite", model, tokens,
                             probes::Pass::forward_and_backward,
                             {{"S", point.S}, {"logit_scale", point.logit_scale}, {"layers", kLayers}});
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
  Prepared prepared = prepare(context, subject);
  nsa::LanguageModelImpl& model = *prepared.instance.model;
  Lengths lengths = context.settings().integers("s_sweep.lengths");
  lengths.insert(lengths.end(), kBetween.begin(), kBetween.end());
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());

  Split split;
  for (const std::int64_t S : lengths) {
    context.phase(fmt::format("forward S={}", S));
    const at::Tensor tokens = probes::text_tokens(context, prepared.config, {1, S});
    (probes::finite_step(model, tokens, probes::Pass::forward).finite ? split.good : split.bad).push_back(S);
  }
  context.fact("lengths", {{"finite", split.good}, {"non_finite", split.bad}});
  if (split.bad.empty()) {
    context.expect("finiteness does not depend on the length", true, "", codes::kLengthPattern);
  } else if (!split.good.empty()) {
    report_pattern(context, split, prepared.config.model.nsa);
  } else {  // no pattern in "all of them": say where
    const at::Tensor tokens = probes::text_tokens(context, prepared.config, {1, lengths.front()});
    probes::expect_finite_step(context, "the forward pass is finite", model, tokens, probes::Pass::forward,
                               {{"S", lengths.front()}});
  }
}

Case point_case(const Subject& subject, const std::string& name, Point point) {
  Case c;
  c.name = name;
  c.params.set("S", std::to_string(point.S));
  if (point.logit_scale != 1) c.params.set("scale", fmt::format("{:g}", point.logit_scale));
  c.run = [subject, point](Context& context) { sweep_point(context, subject, point); };
  return c;
}

std::vector<Case> plan(const Subject& subject, const harness::Settings& settings) {
  const nsa::Geometry geometry = nsa::load_config(model_file(settings)).model.nsa;
  Lengths lengths = settings.integers("s_sweep.lengths");
  const Lengths boundaries = boundary_lengths(geometry, lengths);
  lengths.insert(lengths.end(), boundaries.begin(), boundaries.end());
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());

  std::vector<Case> cases;
  for (const std::int64_t S : lengths) cases.push_back(point_case(subject, "length", {S, 1}));
  for (const double scale : settings.reals("s_sweep.logit_scales")) {
    if (scale != 1) cases.push_back(point_case(subject, "logits", {2 * geometry.w + 3, scale}));
  }
  Case pattern;
  pattern.name = "length_pattern";
  pattern.run = [subject](Context& context) { length_pattern(context, subject); };
  cases.push_back(std::move(pattern));
  return cases;
}

}  // namespace

std::vector<harness::SettingSpec> s_sweep_settings() {
  using enum harness::SettingType;
  return {{.key = "s_sweep.lengths",
           .type = integer_list,
           .default_value = "[128, 512, 1024, 2048]",
           .meaning = "lengths to sweep, besides the block boundaries of the model",
           .allowed = "positive integers",
           .minimum = 1,
           .maximum = 1 << 20},
          {.key = "s_sweep.logit_scales",
           .type = real_list,
           .default_value = "[0.001, 30, 10000]",
           .meaning = "factors on the queries of every branch (1 is what the lengths are swept with)",
           .allowed = "positive numbers",
           .minimum = 1e-30,
           .maximum = 1e30}};
}

harness::Suite s_sweep(const Subject& subject) {
  return {"s_sweep",
          "no sequence length and no scale of the logits gives a non-finite value, forward or backward",
          {"forward"},
          [subject](const harness::Settings& settings) { return plan(subject, settings); }};
}

}  // namespace suites
