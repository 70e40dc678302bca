// Case real_text: the configuration in use, trained for a few steps on real text.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/compare.hpp"
#include "suites/codes.hpp"
#include "suites/probes/statistics.hpp"
#include "suites/training/cases.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;
using nsa::train::StepReport;
using nsa::train::Stop;

constexpr double kInitialTextSlack = 0.3;    // nats; text repeats few symbols, whose logits happen to lie high or low
constexpr double kInitialRandomSlack = 0.2;  // nats; uniform targets average over every symbol
constexpr int kNoiseBatches = 6;

struct Setup {
  nsa::Config config;
  at::Device device = at::kCPU;
  nsa::train::RandomCrops crops;
  std::uint64_t seed = 0;
};

Setup make_setup(const Subject& subject, Context& context) {
  nsa::Config config = subject.config(context);
  if (const std::int64_t steps = context.settings().integer("training.steps"); steps > 0) config.train.steps = steps;
  const nsa::TrainConfig& train = config.train;
  nsa::train::RandomCrops crops(nsa::train::read_bytes(text_file(context.settings(), config)), train.batch_size,
                                train.seq_len, train.seed);
  return {config, device_of(context), std::move(crops), train.seed};
}

Instance make_model(const Subject& subject, const Setup& setup) {
  return subject.model({.config = setup.config.model,
                        .flags = subject.flags(),
                        .precision = setup.config.train.precision,
                        .device = setup.device,
                        .seed = setup.seed});
}

// How far the mean loss of one batch strays from that of another when nothing is learned: the noise that a fall must
// exceed. Deviation over fresh batches of the untrained model.
double batch_noise(nsa::LanguageModelImpl& model, nsa::train::RandomCrops crops, Context& context) {
  std::vector<double> losses;
  for (int i = 0; i < kNoiseBatches; ++i) {
    losses.push_back(evaluate(model, crops.next()).mean);
    context.progress();
  }
  return probes::standard_deviation(losses);
}

// The gradient norm of the first step, once more and without the trainer: the same weights (same seed), the same
// batches, one backward pass, a sum of squares in fp64.
double recomputed_norm(const Subject& subject, const Setup& setup) {
  Instance twin = make_model(subject, setup);
  nsa::train::RandomCrops crops = setup.crops;
  const std::int64_t batches = setup.config.train.accumulate_grad_batches;
  for (std::int64_t i = 0; i < batches; ++i) {
    (twin.model->loss(crops.next().to(setup.device)) / static_cast<double>(batches)).backward();
  }
  double squares = 0;
  for (const at::Tensor& parameter : twin.model->parameters()) {
    if (parameter.grad().defined()) squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

Json table(const std::vector<StepReport>& steps) {
  Json rows = Json::array();
  for (const StepReport& s : steps) {
    rows.push_back({{"step", s.step},
                    {"loss", reports::number(s.loss)},
                    {"lr", reports::number(s.lr)},
                    {"grad_norm", reports::number(s.grad_norm)},
                    {"ms", reports::number(1e3 * s.seconds)},
                    {"stop", nsa::train::to_string(s.stop)}});
  }
  return rows;
}

// What the trainer says must be true of the weights: none changed in a step that was stopped, none is NaN ever.
void check_guard(const StepReport& report, const Weights& before, nsa::LanguageModelImpl& model, Context& context) {
  const bool bad = report.stop != Stop::none || !std::isfinite(report.loss) || !std::isfinite(report.grad_norm);
  const std::vector<std::string> changed = bad ? changed_weights(before, model) : std::vector<std::string>{};
  const std::string nonfinite = nonfinite_weight(model);
  const bool kept = changed.empty() && (nonfinite.empty() || bad);
  context.expect(
      "weights_kept_" + std::to_string(report.step), kept,
      fmt::format("step {}: loss {}, gradient norm {}, stop '{}', yet {} of {} parameters were updated{}", report.step,
                  report.loss, report.grad_norm, nsa::train::to_string(report.stop), changed.size(), before.size(),
                  nonfinite.empty() ? "" : fmt::format("; {} is not finite", nonfinite)),
      codes::kGuardMissed, {{"step", report.step}, {"changed", changed}, {"nonfinite_weight", nonfinite}});
}

void report_stop(const StepReport& report, Context& context) {
  const Json evidence = {{"step", report.step},
                         {"stop", nsa::train::to_string(report.stop)},
                         {"anomaly", report.anomaly},
                         {"loss", reports::number(report.loss)},
                         {"lr", reports::number(report.lr)},
                         {"grad_norm", reports::number(report.grad_norm)}};
  const std::string where = fmt::format("step {} (lr {:.3g})", report.step, report.lr);
  if (report.stop == Stop::nonfinite_loss || !std::isfinite(report.loss)) {
    context.finding(codes::kNonFiniteLoss, fmt::format("{}: loss is {}", where, report.loss), evidence);
  } else if (report.stop == Stop::nonfinite_gradient || !std::isfinite(report.grad_norm)) {
    context.finding(codes::kNonFiniteGradientStep,
                    fmt::format("{}: loss {:.4f} is finite, the gradient of {} is not", where, report.loss,
                                report.anomaly.empty() ? "a parameter that was not named" : report.anomaly),
                    evidence);
  } else {
    context.finding(
        codes::kLossDoesNotFall,
        fmt::format("{}: training stopped: {} {}", where, nsa::train::to_string(report.stop), report.anomaly),
        evidence);
  }
}

// Runs the steps; `first_update` receives the weights' largest change in step 0.
std::vector<StepReport> train(nsa::LanguageModel model, const Setup& setup, Context& context, double& first_update) {
  nsa::train::RandomCrops crops = setup.crops;
  nsa::train::Trainer trainer(model, setup.config.train, [&crops] { return crops.next(); });
  std::vector<StepReport> steps;
  for (std::int64_t step = 0; step < setup.config.train.steps; ++step) {
    context.phase(fmt::format("step {}", step));
    const Weights before = copy_weights(*model);
    steps.push_back(trainer.step());
    check_guard(steps.back(), before, *model, context);
    if (step == 0) {
      const auto now = model->named_parameters();
      for (const auto& [name, old] : before) {
        first_update = std::max(first_update, (now[name].detach() - old).abs().max().item<double>());
      }
    }
    context.progress();
    const StepReport& s = steps.back();
    if (s.stop != Stop::none || !std::isfinite(s.loss) || !std::isfinite(s.grad_norm)) {
      report_stop(s, context);
      break;
    }
  }
  return steps;
}

void check_fall(const std::vector<StepReport>& steps, double noise, Context& context) {
  const std::size_t k = std::min<std::size_t>(3, steps.size() / 2);
  std::vector<double> losses;
  for (const StepReport& s : steps) losses.push_back(s.loss);
  const double first = probes::mean(std::span(losses).first(k)), last = probes::mean(std::span(losses).last(k));
  // Four deviations of the difference of two means of k batches, and never less than a hundredth of a nat.
  const double margin = std::max(0.01, 4 * noise * std::sqrt(2.0 / static_cast<double>(k)));
  context.metric("loss_first", losses.front(), "nat");
  context.metric("loss_last", losses.back(), "nat");
  context.expect_at_least("loss_falls_by", first - last, margin, "nat", codes::kLossDoesNotFall,
                          {{"mean_of_first", reports::number(first)},
                           {"mean_of_last", reports::number(last)},
                           {"batch_noise", reports::number(noise)},
                           {"steps", table(steps)}});
}

void check_gradient_norm(const std::vector<StepReport>& steps, double recomputed, const Setup& setup,
                         Context& context) {
  double smallest = steps.front().grad_norm;
  for (const StepReport& s : steps) smallest = std::min(smallest, s.grad_norm);
  context.metric("grad_norm_first", steps.front().grad_norm, "1");
  context.expect("grad_norm_positive", smallest > 0,
                 fmt::format("the smallest gradient norm of {} steps is {}", steps.size(), smallest),
                 codes::kGradientNorm, {{"steps", table(steps)}});
  const double slack = setup.config.train.precision == nsa::Precision::bf16 ? 0.02 : 1e-3;
  context.expect_within(
      "grad_norm_recomputed", steps.front().grad_norm, recomputed * (1 - slack), recomputed * (1 + slack), "1",
      codes::kGradientNorm,
      {{"reported", reports::number(steps.front().grad_norm)}, {"recomputed", reports::number(recomputed)}});
}

void check_learning_rate(const std::vector<StepReport>& steps, double first_update, const Setup& setup,
                         Context& context) {
  const nsa::TrainConfig& train = setup.config.train;
  double worst = 0;
  Json trace = Json::array();
  for (const StepReport& s : steps) {
    const double wanted = expected_learning_rate(train, s.step);
    const double error = std::abs(s.lr - wanted) / train.lr;
    worst = std::isnan(error) ? error : std::max(worst, error);
    trace.push_back({{"step", s.step}, {"lr", reports::number(s.lr)}, {"wanted", reports::number(wanted)}});
  }
  context.expect_at_most("learning_rate_error", worst, 1e-9, "of the peak", codes::kLearningRate, {{"trace", trace}});
  context.fact("first_update", reports::number(first_update));
  // Adam's first update is lr for every weight with a gradient, whatever the gradient's size (and a little decay); it
  // tells whether the rate that is reported is the rate that is applied. bf16 weights round it away.
  if (train.precision == nsa::Precision::bf16) return;
  const double wanted = expected_learning_rate(train, 0);
  context.expect_within("first_update_per_lr", first_update / wanted, 0.8, 1.2, "1", codes::kLearningRate,
                        {{"largest_change", reports::number(first_update)}, {"lr", reports::number(wanted)}});
}

}  // namespace

void real_text(const Subject& subject, Context& context) {
  context.phase("set-up");
  const Setup setup = make_setup(subject, context);
  const double expected = expected_initial_loss(setup.config.model);
  Instance instance = make_model(subject, setup);
  const nsa::TrainConfig& train_config = setup.config.train;

  context.phase("untrained loss");
  RandomTokens random(setup.config.model.vocab, context.seed("random tokens"));
  const TokenLoss on_random = evaluate(*instance.model, random.next(train_config.batch_size, train_config.seq_len + 1));
  context.expect_within("initial_loss_random", on_random.mean, expected - kInitialRandomSlack,
                        expected + kInitialRandomSlack, "nat", codes::kInitialLoss,
                        {{"expected", expected}, {"tokens", on_random.tokens}, {"on", "uniform random tokens"}});
  const double noise = batch_noise(*instance.model, setup.crops, context);
  context.phase("gradient norm without the trainer");
  const double norm = recomputed_norm(subject, setup);

  double first_update = 0;
  const std::vector<StepReport> steps = train(instance.model, setup, context, first_update);
  context.fact("steps", table(steps));
  context.fact("routes", instance.dispatcher->routes_taken());
  context.expect_within("initial_loss_text", steps.front().loss, expected - kInitialTextSlack,
                        expected + kInitialTextSlack, "nat", codes::kInitialLoss,
                        {{"expected", expected}, {"on", "the first batch of text"}});
  check_learning_rate(steps, first_update, setup, context);
  check_gradient_norm(steps, norm, setup, context);
  if (static_cast<std::int64_t>(steps.size()) == train_config.steps && steps.back().stop == Stop::none) {
    check_fall(steps, noise, context);
  }
}

}  // namespace suites::training_cases
