// The verdicts that no honest model can fail, because they bound what can be known from the data (verdicts.hpp).
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reports/chart.hpp"
#include "suites/codes.hpp"
#include "suites/probes/statistics.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/ngram.hpp"
#include "suites/training/verdicts.hpp"

namespace suites::training_cases {

using harness::Context;
using harness::Json;

namespace {

constexpr std::size_t kWindow = 5;     // steps; single batches scatter
constexpr double kOracleSlack = 0.05;  // nats; both see the same tokens, so that little scatter is left
constexpr double kRunDeviations = 4;   // one false alarm in 30,000
constexpr double kStepDeviations = 6;  // of the many steps, none by chance

// The loss and its bound, for readers.
void tell_curve(const Run& run, const std::string& bound, const std::vector<double>& values, Context& context) {
  const std::vector<double> losses = run.losses();
  std::vector<double> steps(losses.size());
  std::iota(steps.begin(), steps.end(), 0.0);
  context.fact("loss_curve", reports::to_json({.title = "Loss and what it cannot honestly be below",
                                               .x = {"step", ""},
                                               .y = {"loss", "nat"},
                                               .series = {{"loss", steps, losses}, {bound, steps, values}}}));
}

// The oracle's loss on the batches of every step, in order.
std::vector<double> counted_losses(const Run& run, std::int64_t vocab, Context& context) {
  const std::size_t steps = run.losses().size();
  const at::Tensor rows = run.tokens.flatten(0, 1);
  const std::int64_t rows_a_step = run.steps.front().tokens / (rows.size(1) - 1);
  NgramOracle oracle(vocab);
  std::vector<double> losses;
  std::int64_t row = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    double sum = 0;
    for (std::int64_t i = 0; i < rows_a_step; ++i) sum += oracle.observe(row_of(rows, row++));
    losses.push_back(sum / static_cast<double>(rows_a_step));
    context.progress();
  }
  return losses;
}

}  // namespace

void check_suspicious_fall(const Run& run, const nsa::ModelConfig& model, Context& context) {
  context.phase("what counting symbols reaches");
  const std::vector<double> losses = run.losses(), counted = counted_losses(run, model.vocab, context);
  const std::size_t window = std::min(kWindow, losses.size());
  if (window == 0) return;
  double least = INFINITY;
  std::size_t where = 0;
  for (std::size_t i = 0; i + window <= losses.size(); ++i) {
    const double above =
        probes::mean(std::span(losses).subspan(i, window)) - probes::mean(std::span(counted).subspan(i, window));
    if (above >= least) continue;
    least = above;
    where = i;
    if (std::isnan(above)) break;  // and fails
  }
  tell_curve(run, "counting symbols", counted, context);
  context.metric("loss_above_counting", least, "nat");
  context.expect_at_least("loss above that of counting symbols", least, -kOracleSlack, "nat", codes::kSuspiciousFall,
                          {{"steps", {where, where + window - 1}},
                           {"loss", reports::number(probes::mean(std::span(losses).subspan(where, window)))},
                           {"counting", reports::number(probes::mean(std::span(counted).subspan(where, window)))},
                           {"oracle", "Witten-Bell over up to 5 tokens, learning from the same batches"}});
}

void check_floor(const Run& run, double deviation, const nsa::ModelConfig& model, Context& context) {
  const std::vector<double> losses = run.losses();
  if (losses.empty()) return;
  const double floor = std::log(static_cast<double>(model.vocab));
  const auto tokens = static_cast<double>(run.steps.front().tokens);
  const double spread = std::max(deviation, 0.3);
  const auto slack = [&](double deviations, double steps) { return deviations * spread / std::sqrt(tokens * steps); };
  const Json evidence = {{"ln_V", floor}, {"vocab", model.vocab}, {"deviation_per_token", reports::number(deviation)}};
  const double lowest = *std::min_element(losses.begin(), losses.end());
  const double mean = probes::mean(losses);
  tell_curve(run, "ln V", std::vector<double>(losses.size(), floor), context);
  context.metric("loss_above_ln_v", mean - floor, "nat");
  context.expect_at_least("mean loss on random tokens", mean,
                          floor - slack(kRunDeviations, static_cast<double>(losses.size())), "nat",
                          codes::kLossBelowFloor, evidence);
  context.expect_at_least("lowest loss on random tokens", lowest, floor - slack(kStepDeviations, 1), "nat",
                          codes::kLossBelowFloor, evidence);
}

}  // namespace suites::training_cases
