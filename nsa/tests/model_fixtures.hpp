// A model small enough for every test, with every boundary of its geometry within reach.
#pragma once

#include <torch/cuda.h>
#include <torch/utils.h>

#include "nsa/model/lm.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa::fixtures {

inline ModelConfig tiny() {
  ModelConfig config;
  config.name = "tiny";
  config.dim = 32;
  config.n_layers = 2;
  config.n_heads = 4;
  config.n_kv_groups = 2;
  config.d_k = 8;
  config.d_v = 8;
  config.nsa = kSmall;
  return config;
}

inline LanguageModel make_model(const ModelConfig& config, const Environment& environment = {},
                                std::uint64_t seed = 1) {
  const auto flags = resolve(environment);
  torch::manual_seed(seed);
  return LanguageModel(config, Runtime{.flags = flags, .ops = Dispatcher(flags).provider(), .observe = {}});
}

inline at::Tensor bytes(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randint(0, 256, sizes, at::detail::createCPUGenerator(seed), at::kLong);
}

}  // namespace nsa::fixtures
