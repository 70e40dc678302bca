// Case variants: real and random data, with and without FlashAttention-2, the other precision, recomputation of
// activations, a minimal model. Training that fails in all of them has its cause in none of these.
#include "suites/training/variants.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "suites/codes.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/stops.hpp"
#include "suites/ways.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;
using nsa::Precision;

constexpr std::int64_t kSteps = 2;

// The rest of the run stays as it is configured, but for the reference, beside which nothing else runs.
void set_flash(RunPlan& plan, bool on) {
  way_named("flash").ask(plan.flags, on);
  if (on) way_named("reference").ask(plan.flags, false);
}

void make_minimal(RunPlan& plan) {
  plan.config.model.n_layers = 1;
  plan.config.train.batch_size = 1;
  plan.config.train.seq_len = std::min<std::int64_t>(plan.config.train.seq_len, 128);
}

Json row_of(const VariantResult& result) {
  Json losses = Json::array(), norms = Json::array();
  for (const auto& step : result.steps) {
    losses.push_back(reports::number(step.loss));
    norms.push_back(reports::number(step.grad_norm));
  }
  const auto& last = result.steps.back();
  return {
      {"variant", result.variant.name},           {"finite", result.finite()},  {"loss", losses}, {"grad_norm", norms},
      {"stop", nsa::train::to_string(last.stop)}, {"parameter", last.parameter}};
}

}  // namespace

std::vector<Variant> variants_of(const RunPlan& base) {
  std::vector<Variant> all = {{"as configured", "", [](RunPlan&) {}}};
  const bool text = base.data() == Data::text;
  if (text) all.push_back({"synthetic data", "the data", [](RunPlan& p) { p.config.train.data = "synthetic"; }});
  if (base.device.is_cuda()) {  // elsewhere no FlashAttention-2 runs, whatever is asked for
    all.push_back({"NSA_USE_FA2=0", "FlashAttention-2", [](RunPlan& p) { set_flash(p, false); }});
    all.push_back({"NSA_USE_FA2=1", "its absence", [](RunPlan& p) { set_flash(p, true); }});
  }
  const bool narrow = base.config.train.precision == Precision::bf16;
  all.push_back({narrow ? "fp32" : "bf16", "the precision",
                 [narrow](RunPlan& p) { p.config.train.precision = narrow ? Precision::fp32 : Precision::bf16; }});
  const bool kept = !base.config.train.gradient_checkpointing;
  all.push_back({kept ? "gradient checkpointing" : "no gradient checkpointing", "gradient checkpointing",
                 [kept](RunPlan& p) { p.config.train.gradient_checkpointing = kept; }});
  all.push_back({"one layer, one short row", "the size", make_minimal});
  return all;
}

bool VariantResult::finite() const { return !steps.empty() && std::all_of(steps.begin(), steps.end(), went_on); }

void judge_variants(const std::vector<VariantResult>& results, Context& context) {
  Json rows = Json::array(), finite = Json::object();
  std::vector<std::string> cured, ruled_out, failing;
  for (const VariantResult& result : results) {
    rows.push_back(row_of(result));
    finite[result.variant.name] = result.finite();
    if (&result == &results.front()) continue;
    (result.finite() ? cured : failing).push_back(result.variant.name);
    if (!result.finite()) ruled_out.push_back(result.variant.cleared);
  }
  context.fact("variants", rows);
  context.fact("finite", finite);
  const Json evidence = {{"variants", rows}};
  const VariantResult& base = results.front();
  if (base.finite() && failing.empty()) {
    context.expect("training is finite in all variants", true, "", codes::kNonFiniteLoss);
    return;
  }
  if (!base.finite()) {
    const std::string rest =
        cured.empty()
            ? fmt::format("it is so in all {} variants, so the cause is none of: {}", results.size(),
                          fmt::join(ruled_out, ", "))
            : fmt::format("it is finite with: {}; not the cause: {}", fmt::join(cured, ", "),
                          ruled_out.empty() ? "nothing is ruled out" : fmt::format("{}", fmt::join(ruled_out, ", ")));
    return report_stop(base.steps.back(), context, fmt::format("training as configured is not finite; {}; ", rest),
                       evidence);
  }
  for (const VariantResult& result : results) {
    if (result.finite()) continue;
    report_stop(result.steps.back(), context,
                fmt::format("training as configured is finite, but not with {}: ", result.variant.name), evidence);
  }
}

void variants(const Subject& subject, Context& context) {
  RunPlan base = make_plan(subject, context, Data::text);
  base.config.train.steps = kSteps;
  base.config.train.warmup_steps = 1;
  base.config.train.accumulate_grad_batches = 1;
  std::vector<VariantResult> results;
  for (const Variant& variant : variants_of(base)) {
    context.phase(variant.name);
    RunPlan plan = base;
    variant.change(plan);
    Instance instance = make_model(subject, plan);
    nsa::train::Trainer trainer(instance.model, plan.config.train, open_data(plan));
    results.push_back({variant, trainer.run([&](const nsa::train::StepReport&) { context.progress(); })});
  }
  judge_variants(results, context);
}

}  // namespace suites::training_cases
