#include "suites/training/trainer_parts.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "harness/compare.hpp"
#include "nsa/train/adamw.hpp"
#include "nsa/train/checkpoint.hpp"
#include "nsa/train/divergence.hpp"
#include "nsa/train/evaluation.hpp"
#include "nsa/train/gradients.hpp"
#include "nsa/train/stream.hpp"
#include "nsa/train/trainer.hpp"
#include "suites/codes.hpp"
#include "suites/probes/op_bytes.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/update_witness.hpp"
#include "suites/training/verdicts.hpp"

namespace suites::training_cases {

namespace {

namespace fs = std::filesystem;
using harness::Context;
using harness::Json;

// Updates of a 16-bit parameter, each a fraction of the step between two of its values: its wide copy adds them up.
void small_updates(Context& context, const TrainerParts& parts) {
  constexpr int kUpdates = 64;
  constexpr double kRate = 1.0 / 2048;  // between 0.5 and 1 values of bf16 are 1/256 apart
  const at::Tensor parameter =
      at::full({16}, 0.75, at::TensorOptions(device_of(context)).dtype(at::kBFloat16)).requires_grad_();
  const TrainerParts::Update update = parts.optimizer(parameter, /*weight_decay=*/0);
  for (int i = 0; i < kUpdates; ++i) {
    parameter.mutable_grad() = at::ones_like(parameter);
    update(kRate);  // of a gradient that is always the same AdamW's step is the rate
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

// Gradients from far below epsilon to far above 1, in a parameter of each storage type.
void optimizer(Context& context, const TrainerParts& parts) {
  constexpr std::int64_t kValues = 24;
  for (const auto precision : {nsa::Precision::fp32, nsa::Precision::bf16}) {
    const std::string name(nsa::to_string(precision));
    nsa::TrainConfig told;
    told.precision = precision;
    told.master_weights = true;
    told.accumulate_grad_batches = 1;
    told.lr = 1e-2;
    told.weight_decay = 0.1;
    told.grad_clip = 1e9;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("optimizer"));
    const at::TensorOptions wide(at::kFloat);
    const at::Tensor sizes = at::logspace(-10, 1, kValues, 10.0, wide);
    const at::Tensor parameter = at::randn({kValues}, generator, wide)
                                     .mul(0.1)
                                     .to(device_of(context), nsa::storage_type(precision))
                                     .requires_grad_();
    const TrainerParts::Update update = parts.optimizer(parameter, told.weight_decay);
    UpdateWitness witness(parameter, told);
    Run run;
    for (std::int64_t i = 0; i < 6; ++i) {
      const at::Tensor gradient = sizes * (1 + 0.3 * at::randn({kValues}, generator, wide));
      parameter.mutable_grad().reset();
      (parameter * gradient.to(parameter.options().requires_grad(false))).sum().backward();
      nsa::train::StepReport report;
      report.step = i;
      report.lr = told.lr * (1 - 0.1 * static_cast<double>(i));
      report.grad_norm = gradient.norm().item<double>();
      update(report.lr);
      run.steps.push_back(report);
      run.updates.push_back(witness.after(report));
    }
    run.mistakes = witness.mistakes();
    check_updates(run, context, "one of gradients of every size, " + name);
  }

  small_updates(context, parts);

  // Of a whole model's parameters every copy counts.
  const at::Tensor large =
      at::zeros({1 << 20}, at::TensorOptions(device_of(context)).dtype(at::kFloat)).requires_grad_();
  large.mutable_grad() = at::ones_like(large);
  const TrainerParts::Update update = parts.optimizer(large, 0.1);
  update(1e-3);
  const probes::OpBytes bytes = probes::measure_bytes([&] { update(1e-3); });
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
    for (const std::int64_t size : {3, 700, 5000}) {
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
    harness::Json evidence = {
        {"precision", nsa::to_string(precision)}, {"norm", reports::number(told)}, {"wanted", reports::number(wanted)}};
    for (const auto& [value, as_if] : {std::pair(sum, "the norms of the parameters were added"),
                                       std::pair(largest, "the largest of the parameters' norms were taken"),
                                       std::pair(squares, "its root were not taken")})
      if (std::abs(told - value) <= 1e-3 * value) evidence["as_if"] = as_if;
    context.expect(fmt::format("norm of gradients, {}", nsa::to_string(precision)),
                   harness::at_most(std::abs(told - wanted), 1e-5 * wanted),
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
  };
  for (const Trial& trial :
       {Trial{"stays a little below its ceiling", false, ceiling - 0.1, false},
        Trial{"stays a little above its ceiling", false, ceiling + 0.1, true},
        Trial{"forgets a little less than it may", true, relapse - 0.05 * (knows_nothing - best), false},
        Trial{"forgets a little more than it may", true, relapse + 0.05 * (knows_nothing - best), true}}) {
    std::vector<double> losses = {first};
    for (std::size_t i = 1; i <= 2 * DivergenceGuard::kWindow; ++i) {
      const double share = std::min(1.0, static_cast<double>(i) / static_cast<double>(DivergenceGuard::kWindow));
      losses.push_back(trial.learns ? first + share * (best - first) : knows_nothing);
    }
    const std::size_t before = losses.size();
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

class SameBatch : public nsa::train::BatchStream {
 public:
  explicit SameBatch(at::Tensor tokens) : tokens_(std::move(tokens)) {}
  nsa::train::Batch next() override { return {tokens_, {}}; }
  [[nodiscard]] nlohmann::json position() const override { return nlohmann::json::object(); }
  void seek(const nlohmann::json&) override {}

 private:
  at::Tensor tokens_;
};

// Without gradients nothing of a layer is kept for later.
void evaluation(const Subject& subject, Context& context, const TrainerParts& parts) {
  nsa::Config config = subject.config(context);
  config.model.n_layers = std::min<std::int64_t>(config.model.n_layers, 3);
  const std::int64_t S = std::min<std::int64_t>(config.train.seq_len, 128);
  Instance instance = subject.model({.config = config.model,
                                     .flags = subject.flags(),
                                     .precision = config.train.precision,
                                     .device = device_of(context),
                                     .seed = context.seed("weights")});
  const at::Tensor tokens = RandomTokens(config.model.vocab, context.seed("tokens")).next(2, S + 1);
  SameBatch stream(tokens);
  const at::Tensor on_device = tokens.to(device_of(context));
  const auto alone = [&] {
    const at::NoGradGuard no_grad;
    (void)instance.model->loss(on_device);
  };
  alone();  // what is made once
  const std::int64_t needed = probes::measure_bytes(alone).peak;
  const probes::OpBytes bytes = probes::measure_bytes([&] { parts.evaluate(instance.model, stream, 2); });
  const double ratio = static_cast<double>(bytes.peak) / static_cast<double>(needed);
  context.expect_at_most("peak_of_an_evaluation", ratio, 1.5, "of a forward pass without gradients", codes::kStepBytes,
                         {{"part", "An evaluation"},
                          {"ratio", reports::number(ratio)},
                          {"what", "what a forward pass without gradients holds at once: it keeps a graph"},
                          {"largest", bytes.largest(5)}});
}

// A save that fails takes nothing with it: here a folder stands in the place of the new file.
void saving(Context& context, const TrainerParts& parts) {
  const fs::path folder = context.run_folder() / fmt::format("trainer-parts-{}", ::getpid());
  const auto file = [&](std::int64_t step) { return folder / fmt::format("step_{:08}.safetensors", step); };
  parts.save(folder, 1);
  fs::create_directories(file(2) / "in the way");
  std::string told;
  try {
    parts.save(folder, 2);
  } catch (const std::exception& error) {
    told = error.what();
  }
  const bool stays = fs::is_regular_file(file(1));
  context.expect("a save that fails is told, and what was saved before stays", !told.empty() && stays,
                 fmt::format("a checkpoint could not be written ({}), and the one before {}",
                             told.empty() ? "which nobody was told" : told, stays ? "is there" : "is gone"),
                 codes::kGuardMissed,
                 {{"promise", "a checkpoint that cannot be written is told and takes no older one with it"}});
  fs::remove_all(folder);
}

// Bytes that this process has read so far; nothing where the system does not tell.
std::optional<double> bytes_read() {
  std::ifstream stream("/proc/self/io");
  std::string key;
  double value = 0;
  if (stream >> key >> value && key == "rchar:") return value;
  return std::nullopt;
}

void reading(Context& context, const TrainerParts& parts) {
  constexpr int kLines = 3000;
  constexpr double kMostTimes = 4, kBuffers = 4 << 20;
  const fs::path file = context.run_folder() / fmt::format("trainer-parts-{}.jsonl", ::getpid());
  std::ofstream stream(file);
  for (int i = 0; i < kLines; ++i) stream << fmt::format("{{\"text\": \"line {} of many short ones\"}}\n", i);
  stream.close();
  if (!stream) throw std::runtime_error(file.string() + " could not be written");
  const auto size = static_cast<double>(fs::file_size(file));
  const std::optional<double> before = bytes_read();
  const std::int64_t once = parts.read(file, 1);
  const std::optional<double> after = bytes_read();
  const std::int64_t thrice = parts.read(file, 3);
  fs::remove(file);
  // Two passes more give what a pass holds.
  const double pass = static_cast<double>(thrice - once) / 2;
  context.expect("three passes are three times one", once > 0 && thrice == 3 * once,
                 fmt::format("train.epochs = 1 gives {} batches, 3 gives {}", once, thrice), codes::kBatchOrder,
                 {{"as_if", fmt::format("train.epochs = 1 were {:.3g} passes, and 3 were {:.3g}",
                                        static_cast<double>(once) / pass, static_cast<double>(thrice) / pass)},
                  {"batches", Json::array({once, thrice})}});
  if (!before || !after) return context.fact("reading", "not judged: /proc/self/io does not tell");
  const double read = *after - *before;
  context.expect_at_most("bytes_read_of_a_file_of_many_lines", read, kMostTimes * size + kBuffers, "byte",
                         codes::kReadAgain, {{"bytes_read", read}, {"bytes_of_the_file", size}, {"lines", kLines}});
}

}  // namespace

TrainerParts parts_of_product() {
  TrainerParts parts;
  parts.rate = nsa::train::learning_rate;
  parts.optimizer = [](const at::Tensor& parameter, double weight_decay) -> TrainerParts::Update {
    const auto adamw = std::make_shared<nsa::train::AdamW>(std::vector<at::Tensor>{parameter}, weight_decay);
    return [adamw](double lr) { adamw->step(lr); };
  };
  parts.norm = [](const torch::nn::Module& module) { return nsa::train::global_norm(module).item<double>(); };
  parts.diverged = [](std::int64_t vocab, const std::vector<double>& losses, std::size_t saved_after) {
    nsa::train::DivergenceGuard guard(vocab);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      if (i == saved_after) {
        const nlohmann::json saved = guard.state();
        guard = nsa::train::DivergenceGuard(vocab);
        guard.restore(saved);
      }
      guard.step(static_cast<std::int64_t>(i) + 1, losses[i], 1);
    }
    return guard.alarm().has_value();
  };
  parts.evaluate = [](const nsa::LanguageModel& model, nsa::train::BatchStream& stream, std::int64_t batches) {
    (void)nsa::train::evaluate(model, stream, batches);
  };
  parts.read = [](const fs::path& jsonl, std::int64_t epochs) {
    nsa::train::StreamOptions options;
    options.data = jsonl.string();
    options.seq_len = 256;
    options.epochs = epochs;
    const auto stream = nsa::train::open_stream(options);
    std::int64_t batches = 0;
    while (stream->next().tokens.defined()) ++batches;
    return batches;
  };
  parts.save = [](const fs::path& folder, std::int64_t step) {
    nsa::train::TrainState state;
    state.tensors["model/weight"] = at::ones({3});
    state.facts = {{"step", step}};
    nsa::train::CheckpointStore(folder, /*keep=*/1).save(state);
  };
  return parts;
}

void judge_trainer_parts(const Subject& subject, Context& context, const TrainerParts& parts) {
  const nsa::Config config = subject.config(context);
  context.phase("optimizer");
  optimizer(context, parts);
  context.phase("norm of gradients");
  norm(context, parts);
  context.phase("schedule");
  schedule(context, parts, config.train);
  context.phase("divergence");
  divergence(context, parts, config.model.vocab);
  context.phase("evaluation");
  evaluation(subject, context, parts);
  context.phase("saving");
  saving(context, parts);
  context.phase("reading");
  reading(context, parts);
}

void trainer_parts(const Subject& subject, Context& context) {
  judge_trainer_parts(subject, context, parts_of_product());
}

}  // namespace suites::training_cases
