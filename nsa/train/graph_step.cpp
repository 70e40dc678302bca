#include "nsa/train/graph_step.hpp"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <chrono>

#include "base/clock.hpp"
#include "nsa/parallel/gradient_buckets.hpp"
#include "nsa/train/gradients.hpp"

namespace nsa::train {

namespace {

// While it lives, torch refuses to wait for a GPU: it throws instead. For the whole process.
class NoWaiting {
 public:
  NoWaiting() : found_(c10::cuda::warning_state().get_sync_debug_mode()) {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  }
  ~NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(found_); }
  NoWaiting(const NoWaiting&) = delete;
  NoWaiting& operator=(const NoWaiting&) = delete;

 private:
  c10::cuda::SyncDebugMode found_;
};

bool refused_to_wait(const c10::Error& error) {
  return std::string_view(error.what_without_backtrace()).find("synchronizing CUDA operation") !=
         std::string_view::npos;
}

// Why a rehearsal cannot be captured; "" when nothing speaks against it.
std::string refusal_of_rehearsal(const std::function<void()>& part) {
  try {
    part();
  } catch (const c10::Error& error) {
    if (!refused_to_wait(error)) throw;
    return "train.cuda_graph: something in the forward or backward pass waits for the GPU, which a graph cannot hold; "
           "see the routes that were taken, or set it to false";
  } catch (const Unsupported& refused) {
    return refused.what();
  }
  return "";
}

}  // namespace

std::string graph_refusal(const TrainConfig& config, const EffectiveFlags& flags) {
  if (config.packed) return "train.packed lays out documents anew in every batch, and a graph repeats one layout";
  if (config.precision == Precision::fp64) return "the fused update takes its rate in fp32, too coarse for fp64";
  if (flags.detect_anomaly) return "NSA_DETECT_ANOMALY looks at every gradient from the host";
  if (flags.strict_asserts) return "NSA_STRICT_ASSERTS looks at every result from the host";
  return "";
}

bool goes_by_graph(const TrainConfig& config, const EffectiveFlags& flags, at::Device device) {
  if (config.cuda_graph == CudaGraph::automatic) return device.is_cuda() && graph_refusal(config, flags).empty();
  return config.cuda_graph == CudaGraph::on;
}

GraphStep::GraphStep(LanguageModel model, const TrainConfig& config, AdamW& optimizer,
                     std::shared_ptr<parallel::Group> group)
    : group_(std::move(group)),
      model_(std::move(model)),
      parameters_(model_->parameters()),
      optimizer_(optimizer),
      grad_clip_(config.grad_clip),
      whole_{config.batch_size, config.seq_len + 1} {
  const at::Device device = parameters_.front().device();
  const auto options = at::TensorOptions().device(device);
  const std::int64_t rows = config.batch_size / (group_ ? group_->size() : 1);
  tokens_ = at::zeros({config.accumulate_grad_batches, rows, config.seq_len + 1}, options.dtype(at::kLong));
  // The dtype in which the update computes with a number from the host.
  lr_ = at::zeros({}, options.dtype(device.is_cuda() ? at::kFloat : at::kDouble));
  const std::int64_t told = group_ ? 1 + static_cast<std::int64_t>(wishes_.size()) : 0;
  told_ = at::ones({told}, options.dtype(at::kDouble));
  figures_ = at::zeros({2 + told}, options.dtype(at::kDouble));
  skip_ = at::zeros({}, options.dtype(at::kFloat));
  for (Staged& places : staged_) places = pinned_places(device);
  if (device.is_cuda()) stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()).unwrap();
  if (group_) make_buckets();
}

// On a CPU they are the step's own tensors.
GraphStep::Staged GraphStep::pinned_places(at::Device device) const {
  const auto pinned = [&](const at::Tensor& like) {
    return device.is_cuda() ? at::empty(like.sizes(), at::TensorOptions(like.scalar_type()).pinned_memory(true)) : like;
  };
  return {pinned(tokens_), pinned(told_), pinned(figures_)};
}

GraphStep::~GraphStep() {
  if (group_ && stream_) group_->on_abort({});
}

bool GraphStep::serves(const std::vector<Batch>& batches) const {
  if (static_cast<std::int64_t>(batches.size()) != tokens_.size(0)) return false;
  for (const Batch& batch : batches)
    if (batch.cu_seqlens || batch.tokens.sizes() != at::IntArrayRef(whole_)) return false;
  return true;
}

at::Tensor GraphStep::run(const std::vector<Batch>& batches, double lr, const Tell& tell, const Wishes& mine) {
  begin(batches, lr, tell, mine);
  return end();
}

void GraphStep::begin(const std::vector<Batch>& batches, double lr, const Tell& tell, const Wishes& mine) {
  changed_nothing_ = false;
  if (group_) group_->check();
  std::optional<c10::cuda::CUDAStreamGuard> guard;
  if (stream_) {
    const auto outside = c10::cuda::getCurrentCUDAStream(stream_->device_index());
    ordinary_ = outside.unwrap();
    at::cuda::CUDAEvent before;  // what others did to the parameters, on their stream
    before.record(outside);
    guard.emplace(*stream_);
    before.block(c10::cuda::CUDAStream(*stream_));
  }
  if (under_way_.empty()) skip_.zero_();
  stage(batches, lr, mine);
  begin_staged(tell);
}

void GraphStep::begin_staged(const Tell& tell) {
  UnderWay step;
  step.number = static_cast<double>(calls_);
  step.replayed = stream_ && warmed_up_ >= kWarmUp;
  if (!step.replayed) {
    warm_up(tell);
  } else {
    if (graph_ == nullptr) capture();
    replay(tell);
  }
  step.figures = staged().figures;
  if (stream_) {
    // Already on their way to the host when the waiting begins.
    step.figures.copy_(figures_, /*non_blocking=*/true);
    step.done = std::make_shared<at::cuda::CUDAEvent>();
    step.done->record();
  } else {
    step.figures = figures_.clone();
  }
  under_way_.push_back(std::move(step));
  if (under_way_.back().replayed) hand_out_gradients();  // while the device works
}

at::Tensor GraphStep::end() {
  if (under_way_.empty()) throw std::logic_error("the end of a captured step that has not begun");
  const UnderWay step = std::move(under_way_.front());
  under_way_.pop_front();
  const auto begun = std::chrono::steady_clock::now();
  if (step.done && group_)
    await(*step.done);
  else if (step.done)
    step.done->synchronize();
  wait_seconds_ = base::seconds_since(begun);
  last_replayed_ = step.replayed;
  read_sums(step);
  return step.figures.clone();
}

void GraphStep::take_back(const std::vector<Batch>& batches, const Tell& tell) {
  while (!under_way_.empty()) (void)end();
  const std::optional<c10::cuda::CUDAStreamGuard> guard =
      stream_ ? std::optional<c10::cuda::CUDAStreamGuard>(*stream_) : std::nullopt;
  stage(batches, /*lr=*/0, {});
  begin_staged(tell);
  (void)end();
}

// Waits for nothing: what lies in these pinned tensors is of the last step but one, whose figures have been read.
void GraphStep::stage(const std::vector<Batch>& batches, double lr, const Wishes& mine) {
  ++calls_;
  Staged& places = staged();
  for (std::size_t i = 0; i < batches.size(); ++i) places.tokens[static_cast<std::int64_t>(i)].copy_(batches[i].tokens);
  if (group_) {
    auto* told = places.told.mutable_data_ptr<double>();
    told[0] = static_cast<double>(calls_);
    std::copy(mine.begin(), mine.end(), told + 1);
  }
  if (stream_) {
    tokens_.copy_(places.tokens, /*non_blocking=*/true);
    told_.copy_(places.told, /*non_blocking=*/true);
  }
  lr_.fill_(lr);
}

at::Tensor GraphStep::accumulate(const Tell& tell, bool sums) {
  // Undefined, not zero: the first batch writes its gradients, and the graph's own memory holds them.
  model_->zero_grad();
  forget_own();
  at::Tensor loss;
  const double parts = static_cast<double>(tokens_.size(0)) * ranks();
  const std::vector<at::Tensor> all = tokens_.unbind();
  for (const at::Tensor& tokens : all) {
    tell("forward");
    const at::Tensor share = model_->loss(tokens) / parts;
    tell("backward");
    if (sums && &tokens == &all.back())
      buckets_->backward(share, beside_);
    else
      share.backward();
    loss = loss.defined() ? loss + share.detach() : share.detach();
  }
  return loss;
}

void GraphStep::update(const at::Tensor& loss, const Tell& tell) {
  const at::NoGradGuard no_grad;
  at::Tensor summed;  // loss, the numbers of the call, wishes
  if (group_) {
    buckets_->finish();
    own_ = buckets_->own();
    summed = sum_figures(loss);
  }
  tell("update");
  const at::Tensor norm = optimizer_.gradient_norm();
  if (group_)
    figures_.copy_(
        at::cat({summed.narrow(0, 0, 1), norm.to(at::kDouble).reshape({1}), summed.narrow(0, 1, summed.size(0) - 1)}));
  else
    figures_.copy_(at::stack({loss, norm.to(loss.scalar_type())}));
  at::Tensor good = figures_.narrow(0, 0, 2).isfinite().all();
  if (group_) good = good.logical_and(figures_[2].eq(told_[0] * ranks()));
  at::maximum_out(skip_, skip_, good.logical_not().to(at::kFloat));
  optimizer_.clipped_step(norm, grad_clip_, lr_, skip_);
}

// The last one is the rehearsal: what would break a capture half-way is found while it still has a name. On a CPU the
// same step goes on for ever. Ranks ask each other in all of them, before the first sum; so the sums come after
// backward, and NCCL meets every size of theirs outside a capture.
void GraphStep::warm_up(const Tell& tell) {
  std::optional<NoWaiting> no_waiting;
  if (stream_ && warmed_up_ + 1 == kWarmUp) no_waiting.emplace();
  at::Tensor loss;
  const bool sums = hides_sums() && warmed_up_ >= kWarmUp;
  const std::string why = refusal_of_rehearsal([&] { loss = accumulate(tell, sums); });
  if (group_ == nullptr || warmed_up_ < kWarmUp)
    agree(why);
  else if (!why.empty())
    throw Unsupported(why);
  if (const std::string late = refusal_of_rehearsal([&] { update(loss, tell); }); !late.empty())
    throw Unsupported(late);
  ++warmed_up_;
}

}  // namespace nsa::train
