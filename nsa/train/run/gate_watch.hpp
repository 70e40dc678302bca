// How a model's gates stand, over all layers of one training step. The watch keeps the gates of the last step, which
// are small, and computes nothing until it is asked; it asks nothing of a step, so that a captured one stays as it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "nsa/model/lm.hpp"

namespace nsa::train {

class GateWatch {
 public:
  static constexpr double kCollapsed = 0.9;  // a branch that has more than this share leaves nothing to the others

  // Takes the model's Runtime::watch_gates for as long as it lives. Passes without gradients are not looked at.
  explicit GateWatch(LanguageModel model);
  ~GateWatch();
  GateWatch(const GateWatch&) = delete;
  GateWatch& operator=(const GateWatch&) = delete;

  // Of the last step; `replayed`: it was a replay of a captured one (StepReport). Computed on the device, brought to
  // the host once. {} without gates:
  //   gate_entropy_mean, gate_entropy_min     nats, of the three shares; at most ln 3
  //   gate_entropy_per_layer                  means
  //   gate_max_gate, gate_collapsed_share     the largest share; how many tokens have one above kCollapsed
  //   gate_branch_shares                      means of cmp, sel, win
  [[nodiscard]] nlohmann::json figures(bool replayed) const;

 private:
  using Layers = std::map<std::string, at::Tensor>;  // "layers.3.attention" -> [B,S,G,3]
  LanguageModel model_;
  Layers ordinary_, captured_;  // a replay writes into the tensors of the capture
};

}  // namespace nsa::train
