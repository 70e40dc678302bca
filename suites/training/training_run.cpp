// Case real_text: the configuration in use, trained for a few steps on real text.
// Cases steps[...]: runs of 10, 50 and 200 steps, on text and on random tokens, in fp32 and bf16.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "suites/codes.hpp"
#include "suites/probes/statistics.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/pace.hpp"
#include "suites/training/validation.hpp"
#include "suites/training/verdicts.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;

constexpr int kNoiseBatches = 6;
constexpr std::int64_t kShortRun = 10;
constexpr std::int64_t kLeastForValidation = 50;  // steps: fewer do not learn enough to tell

// The untrained loss on random tokens is that of chance.
void check_untrained(nsa::LanguageModelImpl& model, const RunPlan& plan, Context& context) {
  context.phase("untrained loss");
  const nsa::TrainConfig& train = plan.config.train;
  const double expected = expected_initial_loss(plan.config.model);
  RandomTokens random(plan.config.model.vocab, context.seed("random tokens"));
  const TokenLoss on_random = evaluate(model, random.next(train.batch_size, train.seq_len + 1));
  context.expect_within("untrained_loss_on_random_tokens", on_random.mean, expected - kInitialRandomSlack,
                        expected + kInitialRandomSlack, "nat", codes::kInitialLoss,
                        {{"expected", expected}, {"tokens", on_random.tokens}, {"on", "uniform random tokens"}});
}

// How far the mean loss of one batch strays from that of another when nothing is learned: the noise that a fall must
// exceed. Deviation over fresh batches of the untrained model.
double batch_noise(nsa::LanguageModelImpl& model, const RunPlan& plan, Context& context) {
  const auto stream = open_data(plan);
  std::vector<double> losses;
  for (int i = 0; i < kNoiseBatches; ++i) {
    losses.push_back(evaluate(model, stream->next().tokens).mean);
    context.progress();
  }
  return probes::standard_deviation(losses);
}

// The gradient norm of the first step, once more and without the trainer: the same weights (same seed), the same
// batches, one backward pass, a sum of squares in fp64.
double recomputed_norm(const Subject& subject, const RunPlan& plan, Context& context) {
  context.phase("gradient norm without the trainer");
  Instance twin = make_model(subject, plan);
  const auto stream = open_data(plan);
  const std::int64_t batches = plan.config.train.accumulate_grad_batches;
  for (std::int64_t i = 0; i < batches; ++i) {
    (twin.model->loss(stream->next().tokens.to(plan.device)) / static_cast<double>(batches)).backward();
  }
  double squares = 0;
  for (const at::Tensor& parameter : twin.model->parameters()) {
    if (parameter.grad().defined()) squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

void text_verdicts(const Run& run, double noise, const RunPlan& plan, Context& context) {
  if (run.finished(plan.config.train)) check_fall(run, noise, context);
  check_suspicious_fall(run, plan.config.model, context);
}

void synthetic_verdicts(const Run& run, nsa::LanguageModelImpl& model, const RunPlan& plan, Context& context) {
  const nsa::TrainConfig& train = plan.config.train;
  RandomTokens random(plan.config.model.vocab, context.seed("fresh tokens"));
  const TokenLoss fresh = evaluate(model, random.next(train.batch_size, train.seq_len + 1));
  context.metric("loss_fresh", fresh.mean, "nat");
  check_floor(run, fresh.deviation, plan.config.model, context);
}

void run_and_judge(const Subject& subject, const RunPlan& plan, Context& context) {
  const nsa::TrainConfig& train_config = plan.config.train;
  const bool text = plan.data() == Data::text, validate = text && train_config.steps >= kLeastForValidation;
  context.phase("set-up");
  Instance instance = make_model(subject, plan);
  nsa::LanguageModelImpl& model = *instance.model;
  check_untrained(model, plan, context);
  const double noise = text ? batch_noise(model, plan, context) : 0;
  Validation validation;
  if (validate) {
    validation.before = validation_loss(instance.model, plan, validation.tokens, context);
  }
  // Once for each kind of data and precision is enough: longer runs begin with the same step.
  std::optional<double> norm;
  if (train_config.steps <= kShortRun) norm = recomputed_norm(subject, plan, context);

  const Run run = train(instance.model, plan, context);
  context.fact("steps", table(run));
  const std::vector<double> losses = run.losses();
  if (!losses.empty()) {
    context.metric("loss_first", losses.front(), "nat");
    context.metric("loss_last", losses.back(), "nat");
  }
  check_initial_loss(run, plan, context);
  check_learning_rate(run, train_config, context);
  check_updates(run, context);
  check_gradient_norms(run, context);
  if (norm) check_first_norm(run, *norm, train_config.precision, context);
  if (text) {
    text_verdicts(run, noise, plan, context);
  } else {
    synthetic_verdicts(run, model, plan, context);
  }
  if (validate && run.finished(train_config)) {
    validation.after = validation_loss(instance.model, plan, validation.tokens, context);
    check_validation(run, validation, context);
  }
  judge_pace(run, context);
  judge_memory(run, context);
}

// What a run of the standard level may cost. On the CPU the longest has half the rows. On a GPU rows are
// shorter the longer the run, and shorter still in fp32; and all layers are there in the longest run on text
// alone (and in real_text), the others have four. The geometry stays: 512 tokens still leave selection and
// window something to leave out.
void limit(RunPlan& plan, const RunKind& kind) {
  nsa::TrainConfig& train = plan.config.train;
  if (!plan.device.is_cuda()) {
    if (kind.steps > 50) train.batch_size = std::max<std::int64_t>(1, train.batch_size / 2);
    return;
  }
  const std::int64_t longest = kind.steps > 50 ? 512 : kind.steps > 10 ? 1024 : 2048;
  train.seq_len = std::min(train.seq_len, kind.precision == nsa::Precision::fp32 ? longest / 2 : longest);
  std::int64_t& layers = plan.config.model.n_layers;
  if (kind.steps <= 50 || kind.data == Data::synthetic) layers = std::min<std::int64_t>(layers, 4);
}

}  // namespace

void real_text(const Subject& subject, Context& context) {
  RunPlan plan = make_plan(subject, context, Data::text);
  if (const auto steps = context.settings().integer("training.steps"); steps > 0) plan.config.train.steps = steps;
  run_and_judge(subject, plan, context);
}

void training_run(const Subject& subject, Context& context, const RunKind& kind) {
  RunPlan plan = make_plan(subject, context, kind.data);
  nsa::TrainConfig& train = plan.config.train;
  train.steps = kind.steps;
  train.warmup_steps = std::max<std::int64_t>(2, kind.steps / 20);
  train.precision = kind.precision;
  limit(plan, kind);
  context.fact("run", {{"steps", train.steps},
                       {"batch_size", train.batch_size},
                       {"seq_len", train.seq_len},
                       {"n_layers", plan.config.model.n_layers},
                       {"precision", nsa::to_string(train.precision)},
                       {"data", to_string(kind.data)}});
  run_and_judge(subject, plan, context);
}

}  // namespace suites::training_cases
