// What a training run is at one moment between two steps: everything that the next step depends on.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace nsa::train {

struct TrainState {
  // Copies on the CPU: "model/NAME", "optimizer/..." (AdamW::State), "rng/cpu" and, for a model on a GPU, "rng/cuda".
  std::map<std::string, at::Tensor> tensors;
  // step    steps made
  // loss    of the last of them; null before the first
  // config  nsa::identity of model and training
  // data    BatchStream::position, of the next batch; null without a stream
  // tokens, divergence   predictions made so far; DivergenceGuard::state
  // seconds              spent on them: put there by nsa-train, read by Trainer::load
  nlohmann::json facts;

  [[nodiscard]] std::int64_t step() const { return facts.at("step").get<std::int64_t>(); }
};

// A state that does not belong to this model, configuration or data: what() names everything that differs.
class StateMismatch : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// The states of torch's generators: "rng/cpu", and "rng/cuda" when `device` is a GPU.
[[nodiscard]] std::map<std::string, at::Tensor> random_states(at::Device device);
void set_random_states(const std::map<std::string, at::Tensor>& states, at::Device device);

}  // namespace nsa::train
