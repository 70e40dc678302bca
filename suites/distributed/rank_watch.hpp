// Sees what one rank does in a training step: rows that pass through the model, gradients as they arrive and after the
// reduction, weights, chosen blocks. It looks at operations and parameters, not at what the trainer says of itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nsa/model/lm.hpp"
#include "suites/distributed/record.hpp"

namespace suites::probes {
class OpTap;
}

namespace suites::distributed_ranks {

class RankWatch {
 public:
  // Hooks the model's parameters for as long as this lives. There is one at a time in a process.
  explicit RankWatch(nsa::LanguageModel model);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // A step begins. `keep`: its weights, gradients and choices are kept: "before/NAME", "gradient/NAME", "after/NAME",
  // "blocks/0", ... (the choices of a layer, rows in their order).
  void begin(bool keep);
  void reduced();             // gradients are what the optimizer will get, before clipping
  void take(StepSeen& seen);  // the step is over: rows and parameters of it
  [[nodiscard]] const std::map<std::string, at::Tensor>& kept() const { return kept_; }

 private:
  struct Arrival {
    at::Tensor gradient;  // the sum of what arrived in this step
    int times = 0;
  };
  void keep_weights(const std::string& prefix);
  void watch_choices();

  nsa::LanguageModel model_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<unsigned> hooks_;
  std::vector<Arrival> arrived_;
  std::unique_ptr<probes::OpTap> tap_;
  bool keeping_ = false;
  std::map<std::string, at::Tensor> kept_;
  std::vector<std::vector<at::Tensor>> choices_;  // of each layer
};

}  // namespace suites::distributed_ranks
