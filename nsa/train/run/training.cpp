#include "nsa/train/run/training.hpp"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <torch/cuda.h>

#include <algorithm>

#include "build_info.hpp"
#include "nsa/model/make.hpp"
#include "nsa/train/prefetch.hpp"
#include "nsa/train/run/exit_code.hpp"

namespace nsa::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSynthetic = "synthetic";

at::Device choose_device(DeviceChoice choice, const Rank& rank) {
  if (rank.group) return rank.group->options().device;
  if (choice == DeviceChoice::cpu) return at::kCPU;
  if (torch::cuda::is_available()) return {at::kCUDA, 0};
  if (choice == DeviceChoice::cuda) throw DeviceError("--device cuda: torch finds no usable GPU here");
  return at::kCPU;
}

// The same sums in the same order every time, before the first of them is made.
void make_deterministic() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

Order order_of(DataOrder order) {
  switch (order) {
    case DataOrder::sequential:
      return Order::sequential;
    case DataOrder::random_crops:
      return Order::random_crops;
    case DataOrder::shuffled:
      return Order::shuffled;
  }
  throw std::invalid_argument("nsa-train: unknown order of the data");
}

std::unique_ptr<BatchStream> open(const Config& config, Split split) {
  const TrainConfig& train = config.train;
  StreamOptions options;
  options.data = train.data == kSynthetic ? train.data : find_file(train.data).string();
  options.batch_size = train.batch_size;
  options.seq_len = train.seq_len;
  options.seed = train.seed;
  options.split = split;
  options.validation_share = train.validation_share;
  options.packed = train.packed;
  options.order = order_of(train.order);
  if (split == Split::train)
    options.epochs = train.epochs;
  else if (options.order == Order::shuffled)  // the same batches every time, from the first on
    options.order = Order::sequential;
  options.skip_bad_lines = train.skip_bad_lines;
  options.vocab = config.model.vocab;
  try {
    return open_stream(options);
  } catch (const std::invalid_argument& error) {
    throw UsageError(fmt::format("train.data = {}: {}", train.data, error.what()));
  } catch (const std::runtime_error& error) {
    throw DataError(error.what());
  }
}

std::shared_ptr<BatchStream> training_data(const Config& config) {
  auto stream = open(config, Split::train);
  if (config.train.prefetch_batches == 0) return stream;
  return std::make_shared<Prefetch>(std::move(stream), PrefetchOptions{.depth = config.train.prefetch_batches,
                                                                       .timeout_s = config.train.loader_timeout_s});
}

// Is the schedule, as file and options give it, that long, whatever else is wrong with them? A warm-up that fills
// `steps` asks: it does not fit a shorter one.
bool schedule_has(std::int64_t steps, const fs::path& file, std::vector<Override> overrides) {
  constexpr const char* kProbe = "probe";
  overrides.push_back({"train.warmup_steps", std::to_string(steps), kProbe});
  try {
    (void)load_config(file, overrides);
  } catch (const ConfigInvalid& invalid) {
    return std::none_of(invalid.errors.begin(), invalid.errors.end(),
                        [](const ConfigError& error) { return error.where == kProbe; });
  }
  return true;
}

}  // namespace

fs::path find_file(const fs::path& name) {
  std::error_code error;  // what cannot be looked at is refused by whoever reads it
  if (name.is_absolute() || fs::exists(name, error)) return name;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (const fs::path& folder :
       {program.parent_path().parent_path() / "share" / "nsa-validate", fs::path(build_info::kSourceDir)})
    if (fs::exists(folder / name, error)) return folder / name;
  return name;
}

Config configuration(const Options& options) {
  const fs::path file = find_file(options.config);
  if (!options.steps) return load_config(file, options.overrides);
  auto longer = options.overrides;
  std::erase_if(longer, [](const Override& one) { return one.key == "train.steps"; });
  longer.push_back({"train.steps", std::to_string(*options.steps), "--steps"});
  std::optional<ConfigInvalid> wrong;
  try {
    Config config = load_config(file, options.overrides);
    if (config.train.steps >= *options.steps) return config;
  } catch (const ConfigInvalid& error) {  // perhaps only the schedule is too short: for its warm-up, say
    wrong = error;
  }
  if (wrong && schedule_has(*options.steps, file, options.overrides)) throw *wrong;
  return load_config(file, longer);
}

Training make_training(const Config& config, const Options& options, const Rank& rank, const Seams& seams) {
  Training training;
  training.config = config;
  training.environment = read_environment();
  training.flags = resolve(training.environment);
  const auto reason = graph_refusal(config.train, training.flags);
  if (config.train.cuda_graph == CudaGraph::on && !reason.empty())
    throw UsageError(fmt::format("train.cuda_graph = true: {}", reason));
  if (config.train.deterministic) make_deterministic();
  training.device = choose_device(options.device, rank);
  auto stream = training_data(config);
  if (config.train.eval_every > 0) training.validation = open(config, Split::validation);
  if (seams.data) {
    stream = seams.data(std::move(stream), Split::train);
    if (training.validation) training.validation = seams.data(std::move(training.validation), Split::validation);
  }

  training.dispatcher = std::make_shared<Dispatcher>(training.flags, seams.ops);
  training.model = make_model(config.model, training.flags,
                              {.device = training.device,
                               .seed = config.train.seed,
                               .ops = training.dispatcher->provider(),
                               .parts = training.dispatcher->parts()});
  if (seams.model) seams.model(training.model);
  training.trainer =
      std::make_unique<Trainer>(training.model, config.train, std::move(stream), std::nullopt, rank.group);
  training.after_step = seams.after_step;
  return training;
}

}  // namespace nsa::train
