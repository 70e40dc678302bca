#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "nsa/train/trainer.hpp"

namespace nsa::train {

double learning_rate(const TrainConfig& config, std::int64_t step) {
  if (step < 0) throw std::invalid_argument(fmt::format("learning_rate: step {} is negative", step));
  if (step < config.warmup_steps)
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  const std::int64_t cosine_steps = config.steps - 1 - config.warmup_steps;
  // A cosine of one step has no room to fall: that step is made with the peak rate.
  if (cosine_steps <= 0 && step == config.warmup_steps) return config.lr;
  const double progress =
      cosine_steps <= 0
          ? 1.0
          : std::min(1.0, static_cast<double>(step - config.warmup_steps) / static_cast<double>(cosine_steps));
  return config.lr_min + 0.5 * (config.lr - config.lr_min) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace nsa::train
