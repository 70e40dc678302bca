// A module's parameters as ranks exchange them.
#pragma once

#include <torch/nn/module.h>

#include "nsa/parallel/gradient_sums.hpp"

namespace nsa::train {

// In the order of registration, which is the same on every rank.
[[nodiscard]] inline parallel::NamedTensors named_parameters_of(const torch::nn::Module& module) {
  parallel::NamedTensors all;
  for (const auto& parameter : module.named_parameters()) all.emplace_back(parameter.key(), parameter.value());
  return all;
}

}  // namespace nsa::train
