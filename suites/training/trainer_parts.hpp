// Case trainer_parts: the parts of the trainer alone, where a run of a few steps of ordinary numbers shows nothing of
// them: the optimizer on gradients of every size, the whole schedule, the bounds of divergence, the memory of an
// evaluation, the bytes that reading a file of many lines takes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "harness/context.hpp"
#include "nsa/model/lm.hpp"
#include "nsa/train/batch.hpp"
#include "suites/subject.hpp"

namespace suites::training_cases {

// The product's own; a test puts another one in a place.
struct TrainerParts {
  // Of an optimizer over one parameter, one update with the gradient that it holds.
  using Update = std::function<void(double lr)>;

  std::function<double(const nsa::TrainConfig&, std::int64_t step)> rate;
  std::function<Update(const at::Tensor& parameter, double weight_decay)> optimizer;
  std::function<double(const torch::nn::Module&)> norm;  // of all gradients
  // Whether a run of these losses is stopped, which is saved and goes on after `saved_after` of them.
  std::function<bool(std::int64_t vocab, const std::vector<double>& losses, std::size_t saved_after)> diverged;
  std::function<void(const nsa::LanguageModel&, nsa::train::BatchStream&, std::int64_t batches)> evaluate;
  // All of it, so many times; returns the number of batches.
  std::function<std::int64_t(const std::filesystem::path& jsonl, std::int64_t epochs)> read;
  // A checkpoint of this step into a folder that keeps the newest one.
  std::function<void(const std::filesystem::path& folder, std::int64_t step)> save;
};
[[nodiscard]] TrainerParts parts_of_product();

// What it computes: updates, norms, rates, the bounds of divergence.
void judge_numbers(harness::Context& context, const nsa::Config& config, const TrainerParts& parts);
// All of it.
void judge_trainer_parts(const Subject& subject, harness::Context& context, const TrainerParts& parts);

}  // namespace suites::training_cases
