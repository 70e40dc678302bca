// Case accumulation: n batches of one row, accumulated, are one batch of n rows: the same reported loss, the same
// gradient norm, one step of the schedule.
#include "suites/training/accumulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "suites/codes.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/stops.hpp"
#include "suites/training/verdicts.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;
using nsa::train::StepReport;

constexpr std::int64_t kParts = 4, kSteps = 6;

std::vector<StepReport> steps_of(const Subject& subject, const RunPlan& plan, Context& context) {
  Instance instance = make_model(subject, plan);
  nsa::train::Trainer trainer(instance.model, plan.config.train, open_data(plan));
  return trainer.run([&](const StepReport&) { context.progress(); });
}

double relative(double a, double b) { return std::abs(a - b) / std::max(std::abs(a), std::abs(b)); }

}  // namespace

void judge_accumulation(const AccumulatedSteps& steps, const nsa::TrainConfig& config, Context& context) {
  for (const auto* way : {&steps.at_once, &steps.in_parts}) {
    if (!way->empty() && went_on(way->back())) continue;
    if (way->empty()) throw std::logic_error("accumulation: no step was made");
    return report_stop(way->back(), context, way == &steps.at_once ? "rows at once: " : "rows in parts: ");
  }
  // The first step differs by the order of sums alone; later ones by what updates make of that.
  const double first = config.precision == nsa::Precision::bf16 ? 2e-2 : 1e-4;
  Json rows = Json::array();
  double first_loss = 0, first_norm = 0, worst = 0;
  bool same_count = steps.at_once.size() == steps.in_parts.size(), same_tokens = true;
  for (std::size_t i = 0; i < std::min(steps.at_once.size(), steps.in_parts.size()); ++i) {
    const StepReport &a = steps.at_once[i], &b = steps.in_parts[i];
    const double loss = relative(a.loss, b.loss), norm = relative(a.grad_norm, b.grad_norm);
    if (i == 0) first_loss = loss, first_norm = norm;
    worst = std::max(worst, loss);
    same_tokens = same_tokens && a.tokens == b.tokens;
    rows.push_back({{"step", a.step},
                    {"loss", {reports::number(a.loss), reports::number(b.loss)}},
                    {"grad_norm", {reports::number(a.grad_norm), reports::number(b.grad_norm)}},
                    {"tokens", {a.tokens, b.tokens}}});
  }
  const Json evidence = {{"at_once_and_in_parts", rows}};
  context.fact("accumulation", evidence);
  context.expect("as many steps, of as many tokens", same_count && same_tokens,
                 "steps or tokens a step differ between rows at once and in parts", codes::kAccumulation, evidence);
  context.expect_at_most("loss of the first step differs by", first_loss, first / 10, "of it", codes::kAccumulation,
                         evidence);
  context.expect_at_most("gradient norm of the first step differs by", first_norm, first, "of it", codes::kAccumulation,
                         evidence);
  context.expect_at_most("losses of all steps differ by", worst, 10 * first, "of each", codes::kAccumulation, evidence);

  for (const auto* way : {&steps.at_once, &steps.in_parts}) {
    Run run;
    run.steps = *way;
    check_learning_rate(run, config, context);
  }
}

void accumulation(const Subject& subject, Context& context, nsa::Precision precision) {
  RunPlan plan = make_plan(subject, context, Data::text);
  plan.config.model.n_layers = std::min<std::int64_t>(plan.config.model.n_layers, 2);
  nsa::TrainConfig& train = plan.config.train;
  train.precision = precision;
  train.steps = kSteps;
  train.warmup_steps = 2;
  train.seq_len = std::min<std::int64_t>(train.seq_len, context.cuda() ? 512 : 96);
  AccumulatedSteps steps;
  context.phase("rows at once");
  train.batch_size = kParts;
  train.accumulate_grad_batches = 1;
  steps.at_once = steps_of(subject, plan, context);
  context.phase("rows in parts");
  train.batch_size = 1;
  train.accumulate_grad_batches = kParts;
  steps.in_parts = steps_of(subject, plan, context);
  judge_accumulation(steps, train, context);
}

}  // namespace suites::training_cases
