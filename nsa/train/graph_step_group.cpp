// The captured step among several ranks: the sums of gradients and figures, and what the ranks must do alike.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "base/environment.hpp"
#include "nsa/parallel/gradient_buckets.hpp"
#include "nsa/train/graph_step.hpp"
#include "nsa/train/named_parameters.hpp"

namespace nsa::train {

namespace {

// After trouble is known, for the kernels that wait for the other ranks to be ended by the abort.
constexpr std::chrono::seconds kForTheAbort{10};

// Beside what an ordinary step takes of large memory: small tensors, workspaces of libraries, a kernel that is loaded.
constexpr std::int64_t kSlack = 256 << 20;

}  // namespace

void GraphStep::agree(const std::string& why_not) const {
  const auto all = group_ ? group_->gather("captured step", why_not) : std::vector<std::string>{why_not};
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) throw Unsupported(group_ ? fmt::format("{} (rank {})", all[rank], rank) : all[rank]);
}

// What the graph will hold is tried in the steps that warm up: so NCCL has connected what that takes. The ranks have
// just met in the other sum, and the figures' sum, which is watched, comes behind it.
void GraphStep::sum(parallel::GradientBuckets::Part& part) {
  if (!capturing_) group_->sum(part.gathered(), part.name);
  if (stream_) group_->sum_unrecorded(part.own, part.sums);
}

// The sums' stream goes before the others, so that a sum gets its few SMs at once, and not after all that backward has
// queued.
void GraphStep::make_buckets() {
  buckets_ = std::make_unique<parallel::GradientBuckets>(named_parameters_of(*model_), group_->rank(),
                                                         parallel::bucket_sizes(base::environment()),
                                                         [this](parallel::GradientBuckets::Part& part) { sum(part); });
  if (!stream_) return;
  beside_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, stream_->device_index()).unwrap();
  group_->on_abort([this] { let_go(); });
}

bool GraphStep::hides_sums() const { return buckets_ && buckets_->buckets() > 1; }

// Takes what an ordinary step will need and leaves it in the allocator's cache, for the stream that makes such steps.
bool GraphStep::keep_room() const {
  const c10::StreamGuard guard(*ordinary_);
  const auto bytes = at::TensorOptions(at::kByte).device(ordinary_->device());
  try {
    const at::Tensor step = at::empty({room_ + room_ / 16}, bytes), slack = at::empty({kSlack}, bytes);
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
}

at::Tensor GraphStep::sum_figures(const at::Tensor& loss) {
  own_.push_back(loss);
  at::Tensor all = at::cat({loss.to(at::kDouble).reshape({1}), told_});
  if (capturing_)
    group_->sum_unrecorded({all}, {all});
  else
    group_->sum(all, "figures");
  return all;
}

void GraphStep::forget_own() {
  own_.clear();
  if (buckets_) buckets_->forget_own();
}

bool GraphStep::own_was_finite() const {
  for (const at::Tensor& value : own_)
    if (!at::isfinite(value).all().item<bool>()) return false;
  return !own_.empty();
}

// A rank that is lost leaves this one's kernels waiting, until the thread that watches aborts the communicator. Not a
// copy to the CPU waits for them: in it the driver holds what that thread needs.
void GraphStep::await(const c10::cuda::CUDAEvent& done) {
  std::optional<std::chrono::steady_clock::time_point> until;
  while (!done.query()) {
    if (!until && group_->troubled()) until = std::chrono::steady_clock::now() + kForTheAbort;
    if (until && std::chrono::steady_clock::now() > *until) {
      group_->check();
      throw parallel::PeerDied("the sums of a captured step do not end, also after their abort", {});
    }
    std::this_thread::yield();
  }
}

void GraphStep::throw_broken_off() {
  changed_nothing_ = true;
  group_->check();
  throw parallel::PeerDied("the sums of a captured step were broken off", {});
}

// Of what was broken off the figures have another sum, and by that the update was left out.
void GraphStep::read_sums(const UnderWay& step) {
  if (!group_) return;
  if (!(step.figures[2].item<double>() == step.number * ranks())) throw_broken_off();
  for (std::size_t i = 0; i < wishes_.size(); ++i)
    wishes_[i] = step.figures[3 + static_cast<std::int64_t>(i)].item<double>();
}

}  // namespace nsa::train
