// The always-on watch: is every stage of a training step finite, every gradient that arrives at a stage, and every
// parameter's gradient? It never waits for the device while the step runs. Of each stage it keeps one small tensor, the
// largest |x| of each row: one reduction, in which NaN and infinity survive. read() joins them and waits once.
//
//     FiniteWatch watch;
//     const Observing observing(*model.runtime, watch.observer());
//     for (each step) {
//       watch.begin();
//       model.loss(tokens).backward();
//       watch.look_at_gradients(model);
//       if (const auto found = watch.read(rows)) ...   // repeat the step under FiniteLocator for the operation
//     }
//
// It tells stage, layer, branch, row and direction, not head nor operation: for these there is a second pass
// (finite_locator.hpp). The same reductions are a statistic: how near each stage comes to the end of its dtype.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "suites/probes/finite_sighting.hpp"

namespace suites::probes {

class FiniteWatch {
 public:
  FiniteWatch();

  // A new step: forgets what was seen; what still arrives from an older graph is not taken.
  void begin();
  // To be called with every stage of the forward pass; puts a hook on those that carry gradients.
  void observe(std::string_view name, const at::Tensor& value);
  [[nodiscard]] Observing::Observer observer();  // the same, for Observing; keeps what it needs alive
  // The gradients that the parameters hold now. Those without one are left out.
  void look_at_gradients(const torch::nn::Module& module);

  // The first that is not finite: stages in the order of the forward pass, then their gradients in the order of
  // arrival, then parameters. Waits for the device once; twice when there is something to tell. Keeps everything.
  [[nodiscard]] std::optional<NonFinite> read(const RowMap& rows) const;

  struct Peak {
    std::string name;
    bool backward = false, parameter = false;
    double largest = 0;  // |x|; NaN when it holds one
  };
  // Of every stage, gradient of a stage and parameter's gradient that was seen. Waits for the device once.
  [[nodiscard]] std::vector<Peak> peaks() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace suites::probes
