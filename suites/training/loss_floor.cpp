// Case loss_floor: on fresh uniform tokens nothing can be predicted, so the mean loss of an honest model is never below
// ln V, however long it is trained. A model that reads its own future goes below: the check needs no oracle.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "suites/codes.hpp"
#include "suites/probes/one_thread.hpp"
#include "suites/probes/statistics.hpp"
#include "suites/training/cases.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;

constexpr std::int64_t kBatch = 16, kLength = 64, kEvaluations = 8;
constexpr double kDeviations = 4;  // of the mean over the tokens: one false alarm in 30,000

// A model that learns to use a leak in a few dozen steps, if there is one: the widths in use, but one layer, few
// symbols and a window of two tokens, so that a token that leaks is half of what the window sees.
nsa::Config sensitive(nsa::Config config, std::int64_t steps) {
  config.model.n_layers = 1;
  config.model.vocab = std::min<std::int64_t>(config.model.vocab, 32);
  config.model.nsa.w = 2;
  nsa::TrainConfig& train = config.train;
  train.steps = steps;
  train.warmup_steps = steps / 10;
  train.seq_len = kLength;
  train.batch_size = kBatch;
  train.accumulate_grad_batches = 1;
  train.lr = 0.64 / static_cast<double>(config.model.dim);  // 1e-2 at width 64, 8e-4 at 768
  train.lr_min = train.lr / 10;
  return config;
}

}  // namespace

void loss_floor(const Subject& subject, Context& context) {
  const probes::ThreadsFor threads(subject.config(context).model.dim, context.cuda());
  context.phase("set-up");
  const nsa::Config config = sensitive(subject.config(context), context.settings().integer("training.floor_steps"));
  Instance instance = subject.model({.config = config.model,
                                     .flags = subject.flags(),
                                     .precision = config.train.precision,
                                     .device = device_of(context),
                                     .seed = context.seed("weights")});
  RandomTokens random(config.model.vocab, context.seed("tokens"));
  nsa::train::Trainer trainer(instance.model, config.train, [&] { return random.next(kBatch, kLength + 1); });

  context.phase("training on random tokens");
  std::vector<double> losses;
  for (std::int64_t step = 0; step < config.train.steps; ++step) {
    const auto report = trainer.step();
    context.progress();
    if (report.stop != nsa::train::Stop::none) {
      // Case real_text names such a stop with its step; here it only means that the floor was not judged in full.
      context.fact("stopped", fmt::format("step {}: {} {}", step, nsa::train::to_string(report.stop), report.anomaly));
      break;
    }
    losses.push_back(report.loss);
  }

  context.phase("fresh random tokens");
  const TokenLoss fresh = evaluate(*instance.model, random.next(kBatch * kEvaluations, kLength + 1));
  const double floor = std::log(static_cast<double>(config.model.vocab));
  const auto slack = [&](std::int64_t tokens) {
    return kDeviations * std::max(fresh.deviation, 0.3) / std::sqrt(static_cast<double>(tokens));
  };
  const Json evidence = {{"ln_V", floor},
                         {"vocab", config.model.vocab},
                         {"steps", losses.size()},
                         {"deviation_per_token", reports::number(fresh.deviation)},
                         {"evaluated_tokens", fresh.tokens}};
  context.metric("loss_above_ln_v", fresh.mean - floor, "nat");
  context.expect_at_least("fresh_loss", fresh.mean, floor - slack(fresh.tokens), "nat", codes::kLossBelowFloor,
                          evidence);
  if (losses.empty()) return;
  // The trainer's own figure as well: targets that are not shifted show there and not above. Every batch was fresh.
  const std::size_t last = std::max<std::size_t>(1, losses.size() / 4);
  context.expect_at_least("trained_loss", probes::mean(std::span(losses).last(last)),
                          floor - slack(static_cast<std::int64_t>(last) * kBatch * kLength), "nat",
                          codes::kLossBelowFloor, evidence);
  context.fact("losses", losses);
}

}  // namespace suites::training_cases
