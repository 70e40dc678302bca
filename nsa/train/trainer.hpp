// A training loop with guards: AdamW, linear warm-up and cosine, global-norm clipping, and a stop before the update
// when the loss or any gradient is not finite.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/config.hpp"
#include "nsa/model/lm.hpp"
#include "nsa/train/adamw.hpp"
#include "nsa/train/text.hpp"

namespace nsa::train {

// Learning rate of optimizer step `step` (0, 1, ...): (step+1)/warmup * lr while step < warmup, then cosine from lr to
// lr_min at step = steps - 1 (a cosine of a single step is made at lr; beyond the last step lr_min). Closed form, no
// state.
[[nodiscard]] double learning_rate(const TrainConfig& config, std::int64_t step);

enum class Stop { none, nonfinite_loss, nonfinite_gradient, end_of_data, halted };
[[nodiscard]] std::string_view to_string(Stop stop);

struct StepReport {
  std::int64_t step = 0;  // 0, 1, ...
  double loss = 0;        // mean over the accumulated batches, not divided by anything else
  double lr = 0;
  double grad_norm = 0;      // before clipping, computed before the gradients are cleared
  double seconds = 0;        // wall time of the step, data included, device synchronised
  double fetch_seconds = 0;  // of it, waiting for data
  std::int64_t tokens = 0;   // predictions made: batch * seq_len * accumulation
  Stop stop = Stop::none;    // when not none, no update was made in this step
  std::string anomaly;       // the parameter whose gradient is not finite, or the reason of the stop
};

// Yields [batch, seq_len + 1] int64 tokens on the CPU, or an empty tensor at the end of the data.
using BatchSource = std::function<torch::Tensor()>;

class Trainer {
 public:
  // Casts the model to config.precision (updates are made in fp32 at least, adamw.hpp) and trains it where it is.
  // Throws std::invalid_argument for a configuration that it cannot serve (gradient_checkpointing). Stops with
  // Stop::halted before a step when `halt_file` (if given) exists.
  Trainer(LanguageModel model, TrainConfig config, BatchSource batches,
          std::optional<std::filesystem::path> halt_file = std::nullopt);
  // One optimizer step. After a stop the parameters are bit for bit what they were, and the same step may be tried
  // again. Throws ContractError for a batch of the wrong shape, dtype or device and for a token outside the vocabulary.
  StepReport step();
  // Up to config.steps reports; ends early after a stop. `each` is called after every step.
  std::vector<StepReport> run(const std::function<void(const StepReport&)>& each = {});

 private:
  void guarded_step(StepReport& report);
  torch::Tensor fetch(StepReport& report);  // tokens on the model's device; undefined at the end of the data

  LanguageModel model_;
  TrainConfig config_;
  BatchSource batches_;
  std::optional<std::filesystem::path> halt_file_;
  AdamW optimizer_;
  std::int64_t next_step_ = 0;
};

}  // namespace nsa::train
