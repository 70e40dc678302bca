// The always-on watch: is every stage of a training step finite, every gradient that arrives at a stage, and
// every parameter's gradient? It never waits for the device while the step runs. Of each stage it keeps the
// largest |x| of each row, in which NaN and infinity survive; on a GPU one launch looks at many stages
// (maxima.hpp). read() waits once.
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
// A step that a CUDA graph replays (nsa::train::GraphStep) is watched too. The observer sees the capture, and what it
// asks for becomes part of the graph: after each replay read() tells of that replay. begin() comes before every step of
// the warm-up and before the one that captures, and not again, or what the graph writes would be forgotten.
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
#include "suites/probes/maxima.hpp"

namespace suites::probes {

class FiniteWatch {
 public:
  // at_once: each stage when it is observed, by a launch of its own.
  explicit FiniteWatch(Look look = Look::in_batches);

  // A new step: forgets what was seen; what still arrives from an older graph is not taken.
  void begin();
  // To be called with every stage of the forward pass; puts a hook on those that carry gradients.
  void observe(std::string_view name, const at::Tensor& value);
  [[nodiscard]] Observing::Observer observer();  // the same, for Observing; keeps what it needs alive
  // From now on also those that the parameters of `module`, which must outlive this, hold at the end of each backward
  // pass, without a call: within the capture of a CUDA graph, so that read() after a replay has one number to wait for.
  void follow(const torch::nn::Module& module);
  // The gradients that the parameters hold now. Those without one are left out.
  void look_at_gradients(const torch::nn::Module& module);

  // The first that is not finite: stages in the order of the forward pass, then their gradients in the order of
  // arrival, then parameters. Waits for the device once; twice when there is something to tell. Keeps everything.
  // Throws StageOverwritten when a stage was written in place before it was looked at: in_batches cannot tell then.
  [[nodiscard]] std::optional<NonFinite> read(const RowMap& rows) const;

  struct Peak {
    std::string name;
    bool backward = false, parameter = false;
    double largest = 0;  // |x|; NaN when it holds one
  };
  // Of every stage, gradient of a stage and parameter's gradient that was seen. Waits for the device once.
  // Throws as read() does.
  [[nodiscard]] std::vector<Peak> peaks() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace suites::probes
