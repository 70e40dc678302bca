// The numbers of trainer_parts: updates, norms, rates, and the bounds of divergence.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <list>
#include <string>
#include <vector>

#include "harness/compare.hpp"
#include "nsa/train/divergence.hpp"
#include "suites/codes.hpp"
#include "suites/probes/op_bytes.hpp"
#include "suites/training/trainer_parts.hpp"
#include "suites/training/update_witness.hpp"
#include "suites/training/verdicts.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;

using Numbers = TrainerParts::Numbers;
constexpr TrainerParts::Clipping kNotClipped = {1, 1e9};

// A module with these parameters.
torch::nn::Module module_of(const std::vector<at::Tensor>& parameters) {
  torch::nn::Module module;
  for (std::size_t i = 0; i < parameters.size(); ++i) module.register_parameter(fmt::format("p{}", i), parameters[i]);
  return module;
}

// Updates of a 16-bit parameter, each a fraction of the step between two of its values: its wide copy adds them up.
void small_updates(Context& context, const TrainerParts& parts) {
  constexpr int kUpdates = 64;
  constexpr double kRate = 1.0 / 2048;  // between 0.5 and 1 values of bf16 are 1/256 apart
  const at::Tensor parameter =
      at::full({16}, 0.75, at::TensorOptions(device_of(context)).dtype(at::kBFloat16)).requires_grad_();
  const TrainerParts::Update update = parts.optimizer(module_of({parameter}), /*weight_decay=*/0, Numbers::of_host);
  for (int i = 0; i < kUpdates; ++i) {
    parameter.mutable_grad() = at::ones_like(parameter);
    update(kNotClipped, kRate);  // of a gradient that is always the same AdamW's step is the rate
  }
  const double moved = 0.75 - parameter.detach().to(at::kDouble).mean().item<double>(), wanted = kUpdates * kRate;
  context.expect("small updates of a 16-bit parameter add up", harness::at_most(std::abs(moved - wanted), 1.0 / 256),
                 fmt::format("{} updates of {:.3g} moved a bf16 parameter by {:.3g}, not by {:.3g}: they are rounded "
                             "away",
                             kUpdates, kRate, moved, wanted),
                 codes::kWrongUpdate,
                 {{"as_if",
                   "every update were rounded to 16 bits: those of less than half a step are lost (no fp32 "
                   "copy is kept, or it is not kept from update to update)"},
                  {"moved", reports::number(moved)},
                  {"wanted", reports::number(wanted)}});
}

constexpr std::int64_t kParameters = 70;  // more than our kernels take at a time
// Of a launch the first and the last one, and those of the next launch.
constexpr std::size_t kWatched[] = {0, 63, 64, kParameters - 1};

// Gradients from far below epsilon to far above 1, in parameters of a storage type, the last one larger than what a CTA
// has of it. In some steps all are clipped, by a little and by much.
Run updates(Context& context, const TrainerParts& parts, nsa::Precision precision, Numbers numbers) {
  constexpr std::int64_t kValues = 24, kLarge = 8192 + 27;
  constexpr double kNormOfClip[] = {0.5, 1.1, 1.4, 0.9, 3, 10};  // the norm of a step's gradients, of train.grad_clip
  nsa::TrainConfig told;
  told.precision = precision;
  told.master_weights = true;
  told.accumulate_grad_batches = 1;
  told.lr = 1e-2;
  told.weight_decay = 0.1;
  told.grad_clip = 200;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("optimizer"));
  const at::TensorOptions wide(at::kDouble);
  const at::Tensor sizes = at::logspace(-10, 1, kValues, 10.0, wide);
  std::vector<at::Tensor> all;
  for (std::int64_t i = 0; i < kParameters; ++i)
    all.push_back(at::randn({i == 0                 ? kValues
                             : i == kParameters - 1 ? kLarge
                                                    : 3},
                            generator, wide)
                      .mul(0.1)
                      .to(device_of(context), nsa::storage_type(precision))
                      .requires_grad_());
  const TrainerParts::Update update = parts.optimizer(module_of(all), told.weight_decay, numbers);

  std::list<UpdateWitness> witnesses;
  Run run;
  for (const std::size_t i : kWatched) {
    witnesses.emplace_back(all[i], told);
    run.watched.push_back(
        {fmt::format("parameter {} of {} with gradients of every size, {}, numbers {}", i, kParameters,
                     nsa::to_string(precision), numbers == Numbers::of_host ? "of the host" : "on the device")});
  }
  for (std::size_t step = 0; step < std::size(kNormOfClip); ++step) {
    std::vector<at::Tensor> drawn;
    double squares = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::int64_t count = all[i].numel();
      const at::Tensor places = (at::arange(count) + 7 * static_cast<std::int64_t>(i)).remainder(kValues);
      drawn.push_back(sizes.index({places}) * (1 + 0.3 * at::randn({count}, generator, wide)));
      squares += drawn.back().square().sum().item<double>();
    }
    const double scale = kNormOfClip[step] * told.grad_clip / std::sqrt(squares);
    at::Tensor loss = at::zeros({}, all.front().options().requires_grad(false));
    squares = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const at::Tensor gradient = (drawn[i] * scale).to(loss.options());
      squares += gradient.to(at::kDouble).square().sum().item<double>();
      all[i].mutable_grad().reset();
      loss = loss + (all[i] * gradient).sum();
    }
    loss.backward();
    nsa::train::StepReport report;
    report.step = static_cast<std::int64_t>(step);
    report.lr = told.lr * (1 - 0.1 * static_cast<double>(step));
    report.grad_norm = std::sqrt(squares);
    update({report.grad_norm, told.grad_clip}, report.lr);
    run.steps.push_back(report);
    auto watched = run.watched.begin();
    for (UpdateWitness& witness : witnesses) watched++->updates.push_back(witness.after(report));
  }
  auto watched = run.watched.begin();
  for (const UpdateWitness& witness : witnesses) watched++->mistakes = witness.mistakes();
  return run;
}

bool is_right(const Run& run) {
  return std::all_of(run.watched.begin(), run.watched.end(), [](const WatchedUpdates& watched) {
    return std::all_of(watched.updates.begin(), watched.updates.end(), [](const Update& u) { return u.error <= 1; });
  });
}

// What only our own kernels do wrong is theirs.
Json accused(bool right_without_kernels) {
  if (!right_without_kernels) return Json::object();
  return {{"kernels", "nsa/kernels/layer/update.cu"}};
}

void optimizer(Context& context, const TrainerParts& parts) {
  for (const auto precision : {nsa::Precision::fp32, nsa::Precision::bf16})
    for (const Numbers numbers : {Numbers::of_host, Numbers::on_device}) {
      const Run run = updates(context, parts, precision, numbers);
      check_updates(run, context,
                    accused(!is_right(run) && parts.without_kernels &&
                            is_right(updates(context, *parts.without_kernels, precision, numbers))));
    }

  small_updates(context, parts);

  // Of a whole model's parameters every copy counts.
  const at::Tensor large =
      at::zeros({1 << 20}, at::TensorOptions(device_of(context)).dtype(at::kFloat)).requires_grad_();
  large.mutable_grad() = at::ones_like(large);
  const TrainerParts::Update update = parts.optimizer(module_of({large}), 0.1, Numbers::of_host);
  update(kNotClipped, 1e-3);
  const probes::OpBytes bytes = probes::measure_bytes([&] { update(kNotClipped, 1e-3); });
  const double ratio = static_cast<double>(bytes.allocated) / static_cast<double>(large.nbytes());
  context.expect_at_most("allocated_by_an_update", ratio, 0.5, "of the parameters", codes::kStepBytes,
                         {{"part", "An update of the optimizer"},
                          {"ratio", reports::number(ratio)},
                          {"what", "the parameters' bytes, where it needs next to none"},
                          {"largest", bytes.largest(5)}});
}

// The norm of all gradients, those of 16 bits too, is what clipping divides by.
void norm(Context& context, const TrainerParts& parts) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("gradients"));
  for (const auto precision : {nsa::Precision::fp32, nsa::Precision::bf16}) {
    torch::nn::Module module;
    double squares = 0, sum = 0, largest = 0;
    for (const std::int64_t size : {3, 700, 8192 + 27}) {  // a CTA of ours has 8192 numbers
      const at::Tensor gradient = at::randn({size}, generator, at::TensorOptions(at::kDouble))
                                      .to(device_of(context), nsa::storage_type(precision));
      at::Tensor& parameter = module.register_parameter(fmt::format("p{}", size), at::zeros_like(gradient));
      parameter.mutable_grad() = gradient;
      const double own = gradient.to(at::kDouble).norm().item<double>();
      squares += own * own;
      sum += own;
      largest = std::max(largest, own);
    }
    const double wanted = std::sqrt(squares), told = parts.norm(module);
    const auto is_right = [&](double norm) { return harness::at_most(std::abs(norm - wanted), 1e-5 * wanted); };
    Json evidence = accused(!is_right(told) && parts.without_kernels && is_right(parts.without_kernels->norm(module)));
    evidence.update({{"precision", nsa::to_string(precision)},
                     {"norm", reports::number(told)},
                     {"wanted", reports::number(wanted)}});
    for (const auto& [value, as_if] : {std::pair(sum, "the norms of the parameters were added"),
                                       std::pair(largest, "the largest of the parameters' norms were taken"),
                                       std::pair(squares, "its root were not taken")})
      if (std::abs(told - value) <= 1e-3 * value) evidence["as_if"] = as_if;
    context.expect(fmt::format("norm of gradients, {}", nsa::to_string(precision)), is_right(told),
                   fmt::format("the norm of gradients in {} is {:.8g}, and {:.8g} is right", nsa::to_string(precision),
                               told, wanted),
                   codes::kGradientNorm, evidence);
  }
}

void schedule(Context& context, const TrainerParts& parts, const nsa::TrainConfig& own) {
  nsa::TrainConfig other = own;
  other.steps = 14;
  other.warmup_steps = 4;
  other.lr_min = other.lr / 10;
  nsa::TrainConfig no_warm_up = other;
  no_warm_up.warmup_steps = 0;
  for (const nsa::TrainConfig& config : {own, other, no_warm_up}) {
    Run run;
    const std::int64_t steps = std::min<std::int64_t>(config.steps, 1000);
    for (std::int64_t i = 0; i < steps; ++i) {
      nsa::train::StepReport report;
      report.step = i;
      report.lr = parts.rate(config, i);
      run.steps.push_back(report);
    }
    check_learning_rate(run, config, context);
  }
}

// The bounds of nsa/train/divergence.hpp, from both sides, of a run that goes on in one piece and of one that is saved
// and resumed between. The first loss is far above those that follow: who forgets it has another ceiling.
void divergence(Context& context, const TrainerParts& parts, std::int64_t vocab) {
  using nsa::train::DivergenceGuard;
  const double knows_nothing = std::log(static_cast<double>(vocab)), best = knows_nothing / 3,
               first = knows_nothing + 0.5, ceiling = first + DivergenceGuard::kMargin,
               relapse = best + DivergenceGuard::kLost * (knows_nothing - best);
  struct Trial {
    const char* what;
    bool learns;
    double then;
    bool diverged;
    bool slowly = false;  // over many windows, so that the medians rise with it
  };
  for (const Trial& trial :
       {Trial{"stays a little below its ceiling", false, ceiling - 0.1, false},
        Trial{"stays a little above its ceiling", false, ceiling + 0.1, true},
        Trial{"forgets a little less than it may", true, relapse - 0.05 * (knows_nothing - best), false},
        Trial{"forgets a little more than it may", true, relapse + 0.05 * (knows_nothing - best), true},
        Trial{"forgets slowly, and a little more than it may", true, relapse + 0.05 * (knows_nothing - best), true,
              true}}) {
    std::vector<double> losses = {first};
    for (std::size_t i = 1; i <= 2 * DivergenceGuard::kWindow; ++i) {
      const double share = std::min(1.0, static_cast<double>(i) / static_cast<double>(DivergenceGuard::kWindow));
      losses.push_back(trial.learns ? first + share * (best - first) : knows_nothing);
    }
    const std::size_t before = losses.size();
    constexpr std::size_t kClimb = 8 * DivergenceGuard::kWindow;
    for (std::size_t i = 0; trial.slowly && i < kClimb; ++i)
      losses.push_back(best + static_cast<double>(i) / kClimb * (trial.then - best));
    losses.insert(losses.end(), DivergenceGuard::kLast, trial.then);
    for (const std::size_t saved_after : {losses.size(), std::size_t{1}, before}) {
      const std::string what =
          fmt::format("a run that {}{}", trial.what,
                      saved_after == losses.size() ? "" : fmt::format(", and was resumed after step {}", saved_after));
      const bool diverged = parts.diverged(vocab, losses, saved_after);
      context.expect("divergence: " + what, diverged == trial.diverged,
                     fmt::format("{} (loss {:.3f}, ceiling {:.3f}, relapse {:.3f}) is {}", what, trial.then, ceiling,
                                 relapse, diverged ? "stopped" : "not stopped"),
                     codes::kGuardMissed, {{"guard", fmt::format("divergence ({})", what)}});
    }
  }
}

}  // namespace

void judge_numbers(Context& context, const nsa::Config& config, const TrainerParts& parts) {
  context.phase("optimizer");
  optimizer(context, parts);
  context.phase("norm of gradients");
  norm(context, parts);
  context.phase("schedule");
  schedule(context, parts, config.train);
  context.phase("divergence");
  divergence(context, parts, config.model.vocab);
}

}  // namespace suites::training_cases
