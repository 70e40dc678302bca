#include "suites/training/verdicts.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include "suites/codes.hpp"
#include "suites/probes/statistics.hpp"

namespace suites::training_cases {

using harness::Context;
using harness::Json;

namespace {

constexpr double kInitialTextSlack = 0.3;  // nats; text repeats few symbols, whose logits happen to lie high or low

}  // namespace

double expected_learning_rate(const nsa::TrainConfig& config, std::int64_t step) {
  const auto t = static_cast<double>(step), warm_up = static_cast<double>(config.warmup_steps);
  if (t < warm_up) return config.lr * (t + 1) / warm_up;
  const double last = static_cast<double>(config.steps) - 1;
  const double progress = last > warm_up ? std::fmin((t - warm_up) / (last - warm_up), 1) : (t > warm_up ? 1 : 0);
  const double cosine = std::cos(std::numbers::pi * progress);
  return config.lr * (1 + cosine) / 2 + config.lr_min * (1 - cosine) / 2;
}

double expected_initial_loss(const nsa::ModelConfig& model) {
  return std::log(static_cast<double>(model.vocab)) + 1.0 / 6;
}

namespace {

// What a mistake in the schedule makes of it.
struct RateMistake {
  const char* what;
  std::function<double(const nsa::TrainConfig&, std::int64_t)> rate;
};

std::vector<RateMistake> rate_mistakes() {
  using Config = nsa::TrainConfig;
  const auto changed = [](std::function<void(Config&)> change) {
    return [change](const Config& config, std::int64_t step) {
      Config other = config;
      change(other);
      return expected_learning_rate(other, step);
    };
  };
  const auto share_of_the_way = [](const Config& c, std::int64_t step) {
    const auto last = static_cast<double>(c.steps - 1), warm_up = static_cast<double>(c.warmup_steps);
    return last > warm_up ? (static_cast<double>(step) - warm_up) / (last - warm_up) : 1.0;
  };
  const auto after_warm_up = [](auto rate) {
    return [rate](const Config& c, std::int64_t step) {
      return step < c.warmup_steps ? expected_learning_rate(c, step) : rate(c, step);
    };
  };
  return {
      {"it stayed at its peak after the warm-up", after_warm_up([](const Config& c, std::int64_t) { return c.lr; })},
      {"it fell in a straight line, not along a cosine", after_warm_up([=](const Config& c, std::int64_t step) {
         return c.lr + (c.lr_min - c.lr) * std::clamp(share_of_the_way(c, step), 0.0, 1.0);
       })},
      {"there were no warm-up", changed([](Config& c) { c.warmup_steps = 0; })},
      {"the warm-up began at 0 instead of its first share",
       [](const Config& c, std::int64_t step) {
         return step < c.warmup_steps ? c.lr * static_cast<double>(step) / static_cast<double>(c.warmup_steps)
                                      : expected_learning_rate(c, step);
       }},
      {"every step had the rate of the step before it",
       [](const Config& c, std::int64_t step) {
         return expected_learning_rate(c, std::max<std::int64_t>(step - 1, 0));
       }},
      {"every step had the rate of the step after it",
       [](const Config& c, std::int64_t step) { return expected_learning_rate(c, step + 1); }},
      {"the warm-up were not taken off the length of the fall", after_warm_up([](const Config& c, std::int64_t step) {
         Config whole = c;
         whole.warmup_steps = 0;
         return expected_learning_rate(whole, step);
       })},
      {"it fell to 0, not to train.lr_min", changed([](Config& c) { c.lr_min = 0; })},
      {"it reached its end only after all steps, one too late", changed([](Config& c) { ++c.steps; })},
      {"its length were counted in batches, not in steps",
       changed([](Config& c) { c.steps *= c.accumulate_grad_batches; })},
      {"it went half of the way down", after_warm_up([=](const Config& c, std::int64_t step) {
         const double cosine = std::cos(std::numbers::pi * std::clamp(share_of_the_way(c, step), 0.0, 1.0) / 2);
         return c.lr * (1 + cosine) / 2 + c.lr_min * (1 - cosine) / 2;
       })},
      {"it did not end: the cosine goes on and rises again", after_warm_up([=](const Config& c, std::int64_t step) {
         const double cosine = std::cos(std::numbers::pi * share_of_the_way(c, step));
         return c.lr * (1 + cosine) / 2 + c.lr_min * (1 - cosine) / 2;
       })},
  };
}

}  // namespace

void check_learning_rate(const Run& run, const nsa::TrainConfig& config, Context& context) {
  constexpr double kAllowed = 1e-9;  // of the peak
  double worst = 0;
  Json trace = Json::array(), evidence = Json::object();
  const auto error_of = [&](double rate, double wanted) { return std::abs(rate - wanted) / config.lr; };
  for (const auto& s : run.steps) {
    const double wanted = expected_learning_rate(config, s.step), error = error_of(s.lr, wanted);
    worst = std::isnan(error) ? error : std::max(worst, error);
    trace.push_back({{"step", s.step}, {"lr", reports::number(s.lr)}, {"wanted", reports::number(wanted)}});
    if (!(error <= kAllowed) && !evidence.contains("step"))
      evidence.update({{"step", s.step}, {"lr", reports::number(s.lr)}, {"wanted", reports::number(wanted)}});
  }
  if (!evidence.empty())
    for (const RateMistake& mistake : rate_mistakes())
      if (std::all_of(run.steps.begin(), run.steps.end(),
                      [&](const auto& s) { return error_of(s.lr, mistake.rate(config, s.step)) <= kAllowed; })) {
        evidence["as_if"] = mistake.what;
        break;
      }
  evidence["trace"] = trace;
  context.expect_at_most("learning_rate_error", worst, kAllowed, "of the peak", codes::kLearningRate, evidence);
}

void check_updates(const Run& run, Context& context, const Json& evidence) {
  for (const WatchedUpdates& watched : run.watched) {
    if (watched.updates.empty()) continue;
    double worst = 0;
    Json applied = Json::array(), told = evidence;
    for (const Update& update : watched.updates) {
      worst = std::isnan(update.error) ? update.error : std::max(worst, update.error);
      if (!told.contains("first_wrong_step") && !(update.error <= 1)) told["first_wrong_step"] = update.step;
      applied.push_back({{"step", update.step},
                         {"applied", reports::number(update.applied)},
                         {"reported", reports::number(run.steps[applied.size()].lr)},
                         {"error", reports::number(update.error)}});
    }
    told["parameter"] = watched.parameter;
    told["rates"] = applied;
    if (!watched.mistakes.empty()) told["as_if"] = watched.mistakes;
    context.expect_at_most("update_error", worst, 1, "of what rounding allows", codes::kWrongUpdate, told);
  }
}

void check_gradient_norms(const Run& run, Context& context) {
  double smallest = run.steps.front().grad_norm;
  for (const auto& s : run.steps) smallest = std::min(smallest, s.grad_norm);
  context.metric("grad_norm_first", run.steps.front().grad_norm, "1");
  context.expect("grad_norm_positive", smallest > 0,
                 fmt::format("the smallest gradient norm of {} steps is {}", run.steps.size(), smallest),
                 codes::kGradientNorm, {{"steps", table(run)}});
}

void check_first_norm(const Run& run, double recomputed, nsa::Precision precision, Context& context) {
  const double reported = run.steps.front().grad_norm;
  const double slack = precision == nsa::Precision::bf16 ? 0.02 : 1e-3;
  context.expect_within("grad_norm_recomputed", reported, recomputed * (1 - slack), recomputed * (1 + slack), "1",
                        codes::kGradientNorm,
                        {{"reported", reports::number(reported)}, {"recomputed", reports::number(recomputed)}});
}

void check_initial_loss(const Run& run, const RunPlan& plan, Context& context) {
  const double expected = expected_initial_loss(plan.config.model);
  const double slack = plan.data() == Data::text ? kInitialTextSlack : kInitialRandomSlack;
  context.expect_within(fmt::format("initial_loss_{}", to_string(plan.data())), run.steps.front().loss,
                        expected - slack, expected + slack, "nat", codes::kInitialLoss,
                        {{"expected", expected}, {"on", "the first batch of training"}});
}

void check_fall(const Run& run, double batch_noise, Context& context) {
  const std::vector<double> losses = run.losses();
  const std::size_t k = std::min<std::size_t>(3, losses.size() / 2);
  const double first = probes::mean(std::span(losses).first(k)), last = probes::mean(std::span(losses).last(k));
  // Four deviations of the difference of two means of k batches, and never less than a hundredth of a nat.
  const double margin = std::max(0.01, 4 * batch_noise * std::sqrt(2.0 / static_cast<double>(k)));
  context.expect_at_least("loss_falls_by", first - last, margin, "nat", codes::kLossDoesNotFall,
                          {{"mean_of_first", reports::number(first)},
                           {"mean_of_last", reports::number(last)},
                           {"batch_noise", reports::number(batch_noise)},
                           {"steps", table(run)}});
}

}  // namespace suites::training_cases
