// Case trainer_parts: the parts of the trainer alone, where a run of a few steps of ordinary numbers shows nothing of
// them: the optimizer on gradients of every size, the whole schedule, the bounds of divergence, the memory of an
// evaluation, the bytes that reading a file of many lines takes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "harness/context.hpp"
#include "nsa/model/lm.hpp"
#include "nsa/train/batch.hpp"
#include "suites/subject.hpp"

namespace suites::training_cases {

// The product's own; a test puts another one in a place.
struct TrainerParts {
  // Of an optimizer as a trainer has it, one update with the gradients that its parameters hold, whose norm is `norm`:
  // scaled to `most` where that is less. Its numbers come from the host, or, as in a captured step, from the device.
  struct Clipping {
    double norm, most;
  };
  enum class Numbers { of_host, on_device };
  using Update = std::function<void(const Clipping& clipping, double lr)>;

  std::function<double(const nsa::TrainConfig&, std::int64_t step)> rate;
  std::function<Update(const torch::nn::Module& module, double weight_decay, Numbers numbers)> optimizer;
  std::function<double(const torch::nn::Module&)> norm;  // of all gradients, as the trainer takes it
  // Both without our own kernels, to tell whose mistake it is; null: nobody asks.
  std::shared_ptr<const TrainerParts> without_kernels;
  // Whether a run of these losses is stopped, which is saved and goes on after `saved_after` of them.
  std::function<bool(std::int64_t vocab, const std::vector<double>& losses, std::size_t saved_after)> diverged;
  std::function<void(const nsa::LanguageModel&, nsa::train::BatchStream&, std::int64_t batches)> evaluate;
  // All of it, so many times; returns the number of batches.
  std::function<std::int64_t(const std::filesystem::path& jsonl, std::int64_t epochs)> read;
  // A checkpoint of this step into a folder that keeps the newest one.
  std::function<void(const std::filesystem::path& folder, std::int64_t step)> save;
};
// `runtime`: whose flags say by which kernels a trainer updates, and whose record is told. Null: by ATen's functions.
[[nodiscard]] TrainerParts parts_of_product(const std::shared_ptr<const nsa::Runtime>& runtime);

// What it computes: updates, norms, rates, the bounds of divergence.
void judge_numbers(harness::Context& context, const nsa::Config& config, const TrainerParts& parts);
// All of it.
void judge_trainer_parts(const Subject& subject, harness::Context& context, const TrainerParts& parts);

}  // namespace suites::training_cases
