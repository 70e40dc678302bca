// Every way through the model against the forward pass of training: the choices of blocks, then the logits.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "nsa/reference/reference.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/compare.hpp"
#include "suites/oracle/selection.hpp"
#include "suites/parity/cases.hpp"
#include "suites/parity/ways.hpp"
#include "suites/probes/stages.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using harness::Json;

// Allowed error of the logits relative to their RMS, and the gap between scores within which another choice is a tie.
struct Law {
  double relative;  // 0: by the budget of oracle/compare, against the fp64 model
  double tie;
};
Law law(nsa::Precision precision) {
  switch (precision) {
    case nsa::Precision::fp64:
      return {1e-11, 1e-9};
    case nsa::Precision::fp32:
      return {1e-5, 1e-4};
    case nsa::Precision::bf16:
      return {0, 0.1};
  }
  return {0, 0};
}

struct Comparison {
  Context& context;
  const nsa::ModelConfig& model;
  nsa::Precision precision;
  const Trace& baseline;
  at::Tensor exact;  // the fp64 model's logits; undefined where not needed
};

// Where another choice was made than by the baseline.
struct Choices {
  std::int64_t differing = 0;
  std::int64_t comparable = 0;  // tokens before the first one: from there on the passes may differ
  double widest_tie = 0;
  bool good = true;
};

// The scores of layer `prefix`, by the reference in fp64, from what the baseline computed. [B,S,G,N_sel]
at::Tensor scores_of(const Comparison& c, const std::string& prefix) {
  const at::Tensor q = c.baseline.stage(prefix + "q").to(at::kDouble);
  const at::Tensor k = c.baseline.stage(prefix + "cmp.k").to(at::kDouble);
  const at::Tensor p = nsa::reference::compressed_probabilities(q, k, c.model.nsa);
  return nsa::reference::importance(p, c.model.nsa, c.model.n_kv_groups, q.size(1));
}

// Whether a stage is the baseline's within the width of a tie; true when it is not shown.
bool agrees(const Comparison& c, const Trace& trace, const std::string& stage, std::int64_t tokens) {
  const at::Tensor value = trace.stage(stage), wanted = c.baseline.stage(stage);
  if (!value.defined() || !wanted.defined()) return true;
  oracle::Verdict verdict = oracle::near(value.narrow(1, 0, tokens), wanted.narrow(1, 0, tokens), 0);
  verdict.bound = law(c.precision).tie * rms(wanted);
  return verdict.good();
}

Choices compare_choices(const Comparison& c, const ModelWay& way, const Trace& trace) {
  Choices result{0, trace.tokens(), 0, true};
  for (std::int64_t layer = 0; layer < c.model.n_layers && result.comparable > 0; ++layer) {
    const std::string prefix = fmt::format("layers.{}.attention.", layer);
    const at::Tensor all = c.baseline.stage(prefix + "blocks"), own = trace.stage(prefix + "blocks");
    if (!all.defined() && !own.defined()) continue;  // another branch is forced
    const auto cut = [&](const at::Tensor& t) { return t.narrow(1, 0, result.comparable); };
    const bool shown = c.context.expect("the choices of every layer are shown",
                                        all.defined() && own.defined() && own.size(1) >= result.comparable,
                                        fmt::format("{}: {}blocks is missing or too short", way.name, prefix),
                                        codes::kWaysDiffer, {{"way", way.name}, {"layer", layer}});
    if (!shown) return {0, 0, 0, false};
    const at::Tensor wanted = cut(all), chosen = cut(own);
    if (at::equal(chosen, wanted)) continue;
    const oracle::SelectionVerdict verdict =
        oracle::judge_selection({chosen, wanted, cut(scores_of(c, prefix)), c.model.nsa, law(c.precision).tie});
    // A choice from other queries and keys than the baseline's is no mistake of the selection.
    const bool same_inputs =
        agrees(c, trace, prefix + "q", result.comparable) && agrees(c, trace, prefix + "cmp.o", result.comparable);
    const auto choice = way.caches ? codes::kDecodeChoice : codes::kSelectionDiffers;
    Json evidence = verdict.first;
    evidence["way"] = way.name;
    evidence["layer"] = layer;
    result.good = c.context.expect("every choice of blocks is the baseline's or a tie", verdict.good(),
                                   fmt::format("{}: layer {}, {} of {} queries chose other blocks without a tie{}; {}",
                                               way.name, layer, verdict.unjustified, verdict.queries,
                                               same_inputs ? "" : ", from other queries or keys", verdict.first_fault),
                                   same_inputs ? choice : codes::kWaysDiffer, evidence);
    result.differing += verdict.differing;
    result.widest_tie = std::max(result.widest_tie, verdict.widest_tie);
    result.comparable = chosen.ne(wanted).any(3).any(2).any(0).nonzero().min().item<std::int64_t>();
    if (!result.good) break;
  }
  return result;
}

oracle::Verdict judge_logits(const Comparison& c, const Trace& trace, std::int64_t tokens) {
  const auto cut = [&](const at::Tensor& t) { return t.narrow(1, 0, tokens); };
  const at::Tensor value = cut(trace.logits), wanted = cut(c.baseline.logits);
  if (const double relative = law(c.precision).relative; relative > 0) {
    oracle::Verdict verdict = oracle::near(value, wanted, 0);
    verdict.bound = relative * rms(wanted);
    return verdict;
  }
  const double factor = c.context.settings().real("parity.budget_factor");
  return judge({value, wanted, cut(c.exact)}, oracle::budget(value.scalar_type(), factor));
}

// The first stage in the order of the pass, and in it the first token, that is off by more than the logits may be.
Json first_difference(const Comparison& c, const Trace& trace, std::int64_t tokens, double relative) {
  for (const auto& [name, wanted] : c.baseline.stages) {
    const at::Tensor value = trace.stage(name);
    if (!value.defined() || !wanted.is_floating_point() || wanted.size(1) != c.baseline.tokens() ||
        value.size(1) < tokens)
      continue;
    const at::Tensor a = value.narrow(1, 0, tokens).to(at::kDouble), b = wanted.narrow(1, 0, tokens).to(at::kDouble);
    const at::Tensor off = (a - b).abs().le(relative * rms(b)).logical_not().transpose(0, 1).flatten(1).any(1);
    if (!off.any().item<bool>()) continue;
    const probes::Stage where = probes::parse_stage(name);
    return {{"stage", name},
            {"layer", where.layer},
            {"branch", where.branch},
            {"token", off.nonzero().min().item<std::int64_t>()}};
  }
  return Json::object();
}

// Compares one way; its row of the table.
Json compare_way(const Comparison& c, const ModelWay& way, const Trace& trace) {
  const Choices choices = compare_choices(c, way, trace);
  Json row = {{"way", way.name}, {"tokens", trace.tokens()}, {"other_choices", choices.differing}};
  // A comparison that ties cut short proves little.
  const double share = static_cast<double>(choices.comparable) / static_cast<double>(trace.tokens());
  if (choices.good)
    c.context.expect_at_least(way.name + ": share of the tokens compared", share, 0.5, "", codes::kWaysDiffer, row);
  if (choices.comparable == 0) return row;
  const oracle::Verdict verdict = judge_logits(c, trace, choices.comparable);
  const double scale = rms(c.baseline.logits.narrow(1, 0, choices.comparable));
  row["compared_tokens"] = choices.comparable;
  row["max_error"] = reports::number(verdict.error);
  row["relative_to_rms"] = reports::number(verdict.error / scale);
  row["bound"] = reports::number(verdict.bound / scale);
  if (way.prefill >= 0) row["prefill"] = way.prefill;
  if (way.selection) row["selection"] = nsa::to_string(*way.selection);
  if (choices.widest_tie > 0) row["widest_tie"] = choices.widest_tie;

  Json evidence = verdict.evidence();
  evidence["way"] = way.name;
  evidence["prefill"] = way.prefill;
  if (!verdict.good())
    evidence["first"] = first_difference(c, trace, choices.comparable, verdict.bound / std::max(scale, 1e-300));
  c.context.expect(way.name + " = training forward", verdict.good(),
                   fmt::format("{}: logits differ from the training forward by {:.3g} of their RMS (allowed {:.3g}); "
                               "worst at [{}]",
                               way.name, verdict.error / scale, verdict.bound / scale, fmt::join(verdict.index, ", ")),
                   codes::kWaysDiffer, evidence);
  return row;
}

// Logits of the fp64 model with the weights of the model in `options.precision`.
at::Tensor exact_logits(Context& context, const Subject& subject, const WaysOptions& options,
                        const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  Prepared rounded = prepare(context, subject, options.config, options.precision, subject.flags());
  Prepared wide = prepare(context, subject, options.config, nsa::Precision::fp64, subject.flags());
  const auto source = rounded.model().named_parameters();
  for (auto& parameter : wide.model().named_parameters()) parameter.value().copy_(source[parameter.key()]);
  return wide.model().forward(tokens);
}

}  // namespace

void xpath(Context& context, const Subject& subject, const std::string& model, nsa::Precision precision) {
  WaysOptions options{named_config(context, subject, model), precision,
                      context.settings().integer("parity.handover_steps")};
  options.S = length_of(options.config.model.nsa);
  const at::Tensor tokens = prompt(context, options.config, {options.B, options.S});
  context.phase("training forward");
  const ModelWay training = training_forward(context, subject, options);
  const Trace baseline = training.run(tokens);
  Comparison comparison{context, options.config.model, precision, baseline, {}};
  if (law(precision).relative == 0) {
    context.phase("training forward in fp64");
    comparison.exact = exact_logits(context, subject, options, tokens);
  }
  Json table = Json::array(
      {{{"way", training.name}, {"tokens", options.S}, {"selection", nsa::to_string(training.selection.value())}}});
  double worst = 0;
  for (const ModelWay& way : other_ways(context, subject, options)) {
    context.phase(way.name);
    Trace trace;
    try {
      trace = way.run(tokens);
    } catch (const BrokenChoice& broken) {
      context.finding(codes::kDecodeChoice, way.name + ": " + broken.what(),
                      {{"way", way.name}, {"chosen", broken.what()}});
      continue;
    }
    const Json row = compare_way(comparison, way, trace);
    if (const auto found = row.find("relative_to_rms"); found != row.end() && found->is_number())
      worst = std::max(worst, found->get<double>());
    table.push_back(row);
  }
  context.fact("ways", table);
  context.metric("largest error of any way, relative to the logits' RMS", worst, "");
}

}  // namespace suites::parity_cases
