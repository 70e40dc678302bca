// How a model's gates stand, over all layers of one training step: watched on logged steps only, computed on the
// device, brought to the host once.
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

  explicit GateWatch(LanguageModel model) : model_(std::move(model)) {}
  // From here on the gates of every forward pass are looked at, the last pass counts; observers that are there are
  // still called.
  void begin();
  // The figures, and nothing is watched any more. {} without gates:
  //   gate_entropy_mean, gate_entropy_min     nats, of the three shares; at most ln 3
  //   gate_entropy_per_layer                  means
  //   gate_max_gate, gate_collapsed_share     the largest share; how many tokens have one above kCollapsed
  //   gate_branch_shares                      means of cmp, sel, win
  [[nodiscard]] nlohmann::json end();

 private:
  LanguageModel model_;
  std::function<void(std::string_view, const at::Tensor&)> before_;
  bool watching_ = false;
  std::map<std::string, at::Tensor> layers_;  // name of the stage -> figures, on the device
};

}  // namespace nsa::train
