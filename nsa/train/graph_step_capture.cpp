// The graph of a captured step: captured, replayed, given back.
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "base/text.hpp"
#include "nsa/parallel/gradient_buckets.hpp"
#include "nsa/parallel/handshake.hpp"
#include "nsa/train/graph_step.hpp"

namespace nsa::train {

namespace {

// Captures `part`, in the memory of `other` where there is one: why that failed, and "" when it did not.
std::string refusal_of_capture(at::cuda::CUDAGraph& graph, at::cuda::CUDAGraph* other, bool with_ranks,
                               const std::function<void()>& part) {
  const auto reason = [](const std::function<void()>& of) -> std::string {
    try {
      of();
    } catch (const c10::Error& error) {
      return "train.cuda_graph: the step cannot be captured: " + base::first_line(error.what_without_backtrace());
    } catch (const Unsupported& refused) {
      return refused.what();
    }
    return "";
  };
  const auto end = [&] { return reason([&] { graph.capture_end(); }); };  // or the stream stays as it is
  // With ranks: c10d's threads may ask for events of their own meanwhile.
  const auto mode = with_ranks ? cudaStreamCaptureModeThreadLocal : cudaStreamCaptureModeGlobal;
  std::string why;
  try {
    why = reason([&] {
      graph.capture_begin(other != nullptr ? other->pool() : c10::MempoolId_t{0, 0}, mode);
      part();
    });
  } catch (const std::exception&) {
    (void)end();  // the first error is the one that tells
    throw;
  }
  const std::string why_not_ended = end();
  return why.empty() ? why_not_ended : why;
}

// Bytes that the allocator gave back to the device.
std::int64_t emptied_cache(const c10::Stream& stream) {
  const auto held = [&] {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return c10::cuda::CUDACachingAllocator::getDeviceStats(stream.device_index()).reserved_bytes[kAll].current;
  };
  const std::int64_t before = held();
  c10::cuda::CUDACachingAllocator::emptyCache();
  return before - held();
}

void tell_nobody(std::string_view /*name*/) {}

}  // namespace

void GraphStep::capture() {
  forget_own();
  room_ = std::max(room_, emptied_cache(*stream_));  // what the warm-up used would lie idle beside the graph's memory
  // This rank's own part is tried first, without sums. What fails, fails there on most days, and no rank has given a
  // sum to its graph then: NCCL may talk to the other ranks when it is given one (to register buffers), and wait for
  // them.
  std::unique_ptr<at::cuda::CUDAGraph> tried;
  if (group_) {
    group_->note_all_ended();
    buckets_->allocate();
    tried = std::make_unique<at::cuda::CUDAGraph>(/*keep_graph=*/true);  // it is never instantiated
    agree(refusal_of_capture(*tried, nullptr, /*with_ranks=*/true,
                             [&] { (void)accumulate(tell_nobody, /*sums=*/false); }));
  }
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  capturing_ = true;
  const auto over = c10::make_scope_exit([this] { capturing_ = false; });
  const std::string why = refusal_of_capture(*graph, tried.get(), group_ != nullptr,
                                             [&] { update(accumulate(tell_nobody, hides_sums()), tell_nobody); });
  {
    const std::lock_guard<std::mutex> lock(graph_mutex_);
    graph_ = std::move(graph);  // before anybody is waited for: an abort must be able to end it
  }
  try {
    agree(why);
  } catch (const std::exception&) {
    let_go();
    throw;
  }
  gradients_.clear();
  for (const at::Tensor& parameter : parameters_) gradients_.push_back(parameter.grad());
  if (!group_) return;
  leaves_room_ = parallel::all_of(*group_, "room for an ordinary step", keep_room());
  if (!leaves_room_) c10::cuda::CUDACachingAllocator::emptyCache();
}

void GraphStep::replay(const Tell& tell) {
  std::uint64_t sequence = 0;
  if (group_)
    sequence =
        group_->begin_replay("captured step", buckets_->elements(), c10::toString(gradients_.front().scalar_type()));
  tell("replay");
  bool launched = false;
  {
    const std::lock_guard<std::mutex> lock(graph_mutex_);
    if ((launched = graph_ != nullptr)) graph_->replay();
  }
  if (!launched) throw_broken_off();  // another rank was lost this very moment
  ++replays_;
  if (!group_) return;
  const auto done = std::make_shared<at::cuda::CUDAEvent>();
  done->record();
  group_->replay_given(sequence, [done] {
    try {
      return done->query();
    } catch (const std::exception&) {  // a GPU that is lost ends nothing
      return false;
    }
  });
}

void GraphStep::release() {
  gradients_.clear();
  forget_own();
  let_go();
  leaves_room_ = true;
  if (stream_) c10::cuda::CUDACachingAllocator::emptyCache();
}

void GraphStep::let_go() {
  const std::lock_guard<std::mutex> lock(graph_mutex_);
  graph_.reset();
}

void GraphStep::hand_out_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = gradients_[i];
}

}  // namespace nsa::train
