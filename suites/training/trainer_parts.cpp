#include "suites/training/trainer_parts.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "nsa/train/adamw.hpp"
#include "nsa/train/checkpoint.hpp"
#include "nsa/train/divergence.hpp"
#include "nsa/train/evaluation.hpp"
#include "nsa/train/stream.hpp"
#include "nsa/train/trainer.hpp"
#include "suites/codes.hpp"
#include "suites/probes/op_bytes.hpp"
#include "suites/training/cases.hpp"

namespace suites::training_cases {

namespace {

namespace fs = std::filesystem;
using harness::Context;
using harness::Json;

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

TrainerParts parts_of_product(const std::shared_ptr<const nsa::Runtime>& runtime) {
  using nsa::train::AdamW;
  TrainerParts parts;
  if (runtime) parts.without_kernels = std::make_shared<const TrainerParts>(parts_of_product(nullptr));
  parts.rate = nsa::train::learning_rate;
  parts.optimizer = [runtime](const torch::nn::Module& module, double weight_decay,
                              TrainerParts::Numbers numbers) -> TrainerParts::Update {
    const auto adamw = std::make_shared<AdamW>(module, weight_decay, /*master_weights=*/true, runtime);
    if (numbers == TrainerParts::Numbers::of_host)
      return [adamw](const TrainerParts::Clipping& clipping, double lr) {
        adamw->clipped_step(clipping.norm, clipping.most, lr);
      };
    const at::TensorOptions there = at::TensorOptions(module.parameters().front().device()).dtype(at::kFloat);
    return [adamw, there](const TrainerParts::Clipping& clipping, double lr) {
      adamw->clipped_step(at::scalar_tensor(clipping.norm, there), clipping.most, at::scalar_tensor(lr, there),
                          /*skip=*/at::zeros({}, there));
    };
  };
  parts.norm = [runtime](const torch::nn::Module& module) {
    return AdamW(module, /*weight_decay=*/0, /*master_weights=*/true, runtime).gradient_norm().item<double>();
  };
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
  judge_numbers(context, config, parts);
  context.phase("evaluation");
  evaluation(subject, context, parts);
  context.phase("saving");
  saving(context, parts);
  context.phase("reading");
  reading(context, parts);
}

void trainer_parts(const Subject& subject, Context& context) {
  const auto runtime = std::make_shared<nsa::Runtime>(nsa::Runtime{.flags = subject.flags(), .ops = {}, .observe = {}});
  judge_trainer_parts(subject, context, parts_of_product(runtime));
  Json ways = Json::array();
  for (const nsa::PartTaken& taken : runtime->parts->taken()) ways.push_back(taken);
  context.fact("updates", ways);
}

}  // namespace suites::training_cases
