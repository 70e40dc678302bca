// A training step that a CUDA graph can hold: its tensors stay where they are, the host says nothing on the way, and
// the guards work on the device. On a GPU the graph is captured once and replayed: one launch instead of thousands. It
// computes what the ordinary step of Trainer does, bit for bit where the device repeats itself.
//
// Note [One step ahead]
// Between the end of a replay and the beginning of the next the GPU has nothing to do: figures go to the host, batch
// and rate to the device, and a graph of 600 nodes is started. On an H100 that was 0.5 ms of a step. So the next step
// may begin before this one has ended, unless somebody wants to look at the weights in between. Nobody knows then
// whether this one is finite. The device does: a step that is not to be made sets skip_, and no step behind it changes
// anything, until one begins with none under way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/config.hpp"
#include "nsa/model/lm.hpp"
#include "nsa/parallel/gradient_buckets.hpp"
#include "nsa/parallel/group.hpp"
#include "nsa/train/adamw.hpp"
#include "nsa/train/batch.hpp"

namespace at::cuda {
struct CUDAGraph;
}
namespace c10::cuda {
struct CUDAEvent;
}

namespace nsa::train {

// Why a graph cannot hold the step of this configuration under these flags; "" when it can, as far as they tell. A
// route that waits for the device is found out by run().
[[nodiscard]] std::string graph_refusal(const TrainConfig& config, const EffectiveFlags& flags);

// Whether a trainer makes its steps by GraphStep: `on` everywhere, `automatic` on a GPU where nothing is refused.
[[nodiscard]] bool goes_by_graph(const TrainConfig& config, const EffectiveFlags& flags, at::Device device);

// What a rank wants of all (to stop, say), summed over all with the figures of a step.
using Wishes = std::array<double, 4>;

// With several ranks it sums too: the gradients bucket by bucket beside the last backward, on a stream of their own
// that joins again before the figures are summed and the update is made. Every rank must give every step to it, or
// none: what serves() says depends on the whole batch alone.
class GraphStep {
 public:
  // Steps that are made one operation after another before the graph is captured: libraries take their workspaces and
  // pick their kernels in them.
  static constexpr std::int64_t kWarmUp = 3;

  // Model and optimizer are the ones that every step trains, on one device. From the capture on, their tensors must
  // stay where they are (Trainer::load copies into them), and flags, ops and recompute of the model what they are.
  // `group`: of several ranks that share every batch evenly (deal.hpp); null: alone.
  GraphStep(LanguageModel model, const TrainConfig& config, AdamW& optimizer,
            std::shared_ptr<parallel::Group> group = nullptr);
  ~GraphStep();
  GraphStep(const GraphStep&) = delete;
  GraphStep& operator=(const GraphStep&) = delete;

  // The step has the one shape that the graph has: accumulate_grad_batches of [batch_size, seq_len + 1], not packed. Of
  // the whole batches, of which each rank takes its share.
  [[nodiscard]] bool serves(const std::vector<Batch>& batches) const;

  // One optimizer step with these batches, which it serves (with a group: with this rank's share of such). Returns
  // {loss, gradient norm before clipping}, fp64 on the CPU; to read them is the only time that the host waits. When one
  // of them is not finite, nothing was updated (AdamW::step). The parameters hold the step's gradients afterwards.
  // `tell` is called at the beginning of each part: "forward", "backward", "update", or "replay" for all of it.
  // With a group all of it is that of all ranks, and wishes() are the sums of `mine`.
  //
  // Throws Unsupported when a graph cannot hold the step after all: in the last step of the warm-up when it waits for
  // the device, and when the capture fails; with a group on all ranks alike, where it is so on one. No parameter was
  // changed then, unless `tell` was given "update". Throws parallel::Error as Group::sum does.
  at::Tensor run(const std::vector<Batch>& batches, double lr, const std::function<void(std::string_view)>& tell,
                 const Wishes& mine = {});

  // See Note [One step ahead]. run() in its two halves: end() is of the older one of at most two steps that have begun,
  // and what is said of the last step (wishes() and so on) is of the one that ended last.
  void begin(const std::vector<Batch>& batches, double lr, const std::function<void(std::string_view)>& tell,
             const Wishes& mine = {});
  at::Tensor end();
  // Whether the next begin() may come before the end() of the step that has begun.
  [[nodiscard]] bool may_go_ahead() const { return under_way_.size() == 1 && (!stream_ || graph_ != nullptr); }
  // After an end() that told of a value that is not finite: ends the step that was begun behind it, which has changed
  // nothing, and computes this one again without an update. So the parameters hold its gradients.
  void take_back(const std::vector<Batch>& batches, const std::function<void(std::string_view)>& tell);
  [[nodiscard]] const Wishes& wishes() const { return wishes_; }
  // After run() has thrown: the ranks' sums did not come to their end, and so no parameter was changed.
  [[nodiscard]] bool changed_nothing() const { return changed_nothing_; }
  // Were this rank's own loss and gradients of the last step finite, before they were summed? Waits for the device.
  [[nodiscard]] bool own_was_finite() const;

  // Gives the memory of the graph back; the next step captures anew.
  void release();
  // With a group: an ordinary step finds memory beside the graph, on this rank and on all others. They agreed on it
  // when they captured, and each has kept that memory since; so all of them keep their graphs, or all release them.
  [[nodiscard]] bool leaves_room() const { return leaves_room_; }
  [[nodiscard]] std::int64_t replays() const { return replays_; }  // begun
  [[nodiscard]] bool last_replayed() const { return last_replayed_; }
  [[nodiscard]] const std::optional<c10::Stream>& stream() const { return stream_; }
  // Of the last step: how long the host had nothing to do but to wait for the device.
  [[nodiscard]] double wait_seconds() const { return wait_seconds_; }

 private:
  using Tell = std::function<void(std::string_view)>;
  // What the host writes for a step, and reads of it: pinned. Of two steps, in turn.
  struct Staged {
    at::Tensor tokens, told, figures;
  };
  struct UnderWay {
    std::shared_ptr<at::cuda::CUDAEvent> done;  // the figures are on the host; null on a CPU
    at::Tensor figures;
    double number = 0;  // of the call
    bool replayed = false;
  };
  [[nodiscard]] Staged pinned_places(at::Device device) const;
  [[nodiscard]] Staged& staged() { return staged_[static_cast<std::size_t>(calls_) % staged_.size()]; }
  void stage(const std::vector<Batch>& batches, double lr, const Wishes& mine);
  void begin_staged(const Tell& tell);
  // This rank's loss; its gradients are the parameters'. `sums`: of all ranks, where backward has come to them.
  at::Tensor accumulate(const Tell& tell, bool sums);
  void update(const at::Tensor& loss, const Tell& tell);
  void warm_up(const Tell& tell);
  void capture();
  void replay(const Tell& tell);
  void hand_out_gradients();

  // graph_step_group.cpp: with several ranks
  [[nodiscard]] double ranks() const { return group_ ? group_->size() : 1; }
  void agree(const std::string& why_not) const;  // throws Unsupported on all where one has a reason
  void make_buckets();
  void sum(parallel::GradientBuckets::Part& part);
  void forget_own();
  [[nodiscard]] bool hides_sums() const;  // beside backward: there is more than one
  [[nodiscard]] bool keep_room() const;
  at::Tensor sum_figures(const at::Tensor& loss);
  void await(const c10::cuda::CUDAEvent& done);
  [[noreturn]] void throw_broken_off();
  void let_go();  // of the graph, from any thread
  void read_sums(const UnderWay& step);

  std::shared_ptr<parallel::Group> group_;  // outlives the graph: NCCL waits for the end of all graphs with its sums
  LanguageModel model_;
  std::vector<at::Tensor> parameters_;
  AdamW& optimizer_;
  double grad_clip_;
  std::vector<std::int64_t> whole_;  // [B, S+1] of the batches that all ranks share
  at::Tensor tokens_;                // [accumulated, B, S+1] int64
  at::Tensor lr_;                    // scalar
  // With a group, fp64: the number of this call, its wishes. Another number for each call: an all-reduce that is
  // aborted may add what its buffers hold of the step before, and a 1 of then would be taken for one of now.
  at::Tensor told_;
  // fp64: loss, norm; with a group also the ranks' numbers of this call, summed, and the sums of wishes.
  at::Tensor figures_;
  at::Tensor skip_;  // fp32: 1 after a step that was not to be made, until a step begins alone
  std::array<Staged, 2> staged_;
  std::deque<UnderWay> under_way_;
  std::vector<at::Tensor> gradients_;                   // as captured, in the order of the parameters
  std::vector<at::Tensor> own_;                         // this rank's gradients and loss, before they were summed
  std::unique_ptr<parallel::GradientBuckets> buckets_;  // with a group
  Wishes wishes_{};
  std::int64_t calls_ = 0;  // of run(), the same on all ranks
  bool capturing_ = false, changed_nothing_ = false, last_replayed_ = false;
  std::optional<c10::Stream> stream_;  // of everything here, on a GPU: the default one cannot be captured
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
  std::mutex graph_mutex_;  // for let_go()
  std::int64_t warmed_up_ = 0, replays_ = 0;
  double wait_seconds_ = 0;
  std::optional<c10::Stream> beside_, ordinary_;  // of the sums in a graph; the caller's
  std::int64_t room_ = 0;                         // bytes of the device that an ordinary step takes
  bool leaves_room_ = true;                       // there is no graph, or there was room when it was captured
};

}  // namespace nsa::train
