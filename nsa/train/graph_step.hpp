// A training step that a CUDA graph can hold: its tensors stay where they are, the host says nothing on the way, and
// the guards work on the device. On a GPU the graph is captured once and replayed: one launch instead of thousands. It
// computes what the ordinary step of Trainer does, bit for bit where the device repeats itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/config.hpp"
#include "nsa/model/lm.hpp"
#include "nsa/train/adamw.hpp"
#include "nsa/train/batch.hpp"

namespace at::cuda {
struct CUDAGraph;
}

namespace nsa::train {

// Why a graph cannot hold the step of this configuration under these flags; "" when it can, as far as they tell. A
// route that waits for the device is found out by run().
[[nodiscard]] std::string graph_refusal(const TrainConfig& config, const EffectiveFlags& flags);

// Whether a trainer makes its steps by GraphStep: `on` everywhere, `automatic` on a GPU where nothing is refused.
[[nodiscard]] bool goes_by_graph(const TrainConfig& config, const EffectiveFlags& flags, at::Device device);

class GraphStep {
 public:
  // Steps that are made one operation after another before the graph is captured: libraries take their workspaces and
  // pick their kernels in them.
  static constexpr std::int64_t kWarmUp = 3;

  // Model and optimizer are the ones that every step trains, on one device. From the capture on, their tensors must
  // stay where they are (Trainer::load copies into them), and flags, ops and recompute of the model what they are.
  GraphStep(LanguageModel model, const TrainConfig& config, AdamW& optimizer);
  ~GraphStep();
  GraphStep(const GraphStep&) = delete;
  GraphStep& operator=(const GraphStep&) = delete;

  // The step has the one shape that the graph has: accumulate_grad_batches of [batch_size, seq_len + 1], not packed.
  [[nodiscard]] bool serves(const std::vector<Batch>& batches) const;

  // One optimizer step with these batches, which it serves. Returns {loss, gradient norm before clipping}, fp64 on the
  // CPU; to read them is the only time that the host waits. When one of them is not finite, nothing was updated
  // (AdamW::step). The parameters hold the step's gradients afterwards. `tell` is called at the beginning of each part:
  // "forward", "backward", "update", or "replay" for all of it.
  //
  // Throws Unsupported when a graph cannot hold the step after all: in the last step of the warm-up when it waits for
  // the device, and when the capture fails. No parameter was changed then, unless `tell` was given "update".
  at::Tensor run(const std::vector<Batch>& batches, double lr, const std::function<void(std::string_view)>& tell);

  // Gives the memory of the graph back; the next step captures anew.
  void release();
  [[nodiscard]] std::int64_t replays() const { return replays_; }
  // Of the last step: how long the host had nothing to do but to wait for the device.
  [[nodiscard]] double wait_seconds() const { return wait_seconds_; }

 private:
  using Tell = std::function<void(std::string_view)>;
  void stage(const std::vector<Batch>& batches, double lr);
  void compute(const Tell& tell);
  void warm_up(const Tell& tell);
  void capture();
  void hand_out_gradients();

  LanguageModel model_;
  std::vector<at::Tensor> parameters_;
  AdamW& optimizer_;
  double grad_clip_;
  at::Tensor tokens_, staged_;         // [accumulated, B, S+1] int64 on the device, and pinned on the host
  at::Tensor lr_;                      // scalar
  at::Tensor figures_;                 // [2] fp64: loss, norm
  std::vector<at::Tensor> gradients_;  // as captured, in the order of the parameters
  std::optional<c10::Stream> stream_;  // of everything here, on a GPU: the default one cannot be captured
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
  std::int64_t warmed_up_ = 0, replays_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace nsa::train
