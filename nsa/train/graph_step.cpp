#include "nsa/train/graph_step.hpp"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <chrono>

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

GraphStep::GraphStep(LanguageModel model, const TrainConfig& config, AdamW& optimizer)
    : model_(std::move(model)), parameters_(model_->parameters()), optimizer_(optimizer), grad_clip_(config.grad_clip) {
  const at::Device device = parameters_.front().device();
  const auto options = at::TensorOptions().device(device);
  const std::vector<std::int64_t> sizes = {config.accumulate_grad_batches, config.batch_size, config.seq_len + 1};
  tokens_ = at::zeros(sizes, options.dtype(at::kLong));
  staged_ = device.is_cuda() ? at::empty(sizes, at::TensorOptions(at::kLong).pinned_memory(true)) : tokens_;
  // The dtype in which the update computes with a number from the host.
  lr_ = at::zeros({}, options.dtype(device.is_cuda() ? at::kFloat : at::kDouble));
  figures_ = at::zeros({2}, options.dtype(at::kDouble));
  if (device.is_cuda()) stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()).unwrap();
}

GraphStep::~GraphStep() = default;

bool GraphStep::serves(const std::vector<Batch>& batches) const {
  if (static_cast<std::int64_t>(batches.size()) != tokens_.size(0)) return false;
  for (const Batch& batch : batches)
    if (batch.cu_seqlens || batch.tokens.sizes() != tokens_.sizes().slice(1)) return false;
  return true;
}

at::Tensor GraphStep::run(const std::vector<Batch>& batches, double lr, const Tell& tell) {
  if (!stream_) {
    stage(batches, lr);
    compute(tell);
    return figures_.clone();
  }
  at::cuda::CUDAEvent before;  // what others did to the parameters, on their stream
  before.record(c10::cuda::getCurrentCUDAStream(stream_->device_index()));
  const c10::cuda::CUDAStreamGuard guard(*stream_);
  before.block(c10::cuda::CUDAStream(*stream_));
  stage(batches, lr);
  if (warmed_up_ < kWarmUp) {
    warm_up(tell);
  } else {
    if (graph_ == nullptr) capture();
    tell("replay");
    graph_->replay();
    ++replays_;
  }
  const auto launched = std::chrono::steady_clock::now();
  if (graph_ != nullptr) hand_out_gradients();  // while the device works
  at::Tensor figures = figures_.cpu();
  wait_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - launched).count();
  return figures;
}

// Waits for nothing: the figures of the step before have been read, so the pinned tensor is free.
void GraphStep::stage(const std::vector<Batch>& batches, double lr) {
  for (std::size_t i = 0; i < batches.size(); ++i) staged_[static_cast<std::int64_t>(i)].copy_(batches[i].tokens);
  if (stream_) tokens_.copy_(staged_, /*non_blocking=*/true);
  lr_.fill_(lr);
}

void GraphStep::compute(const Tell& tell) {
  // Undefined, not zero: the first batch writes its gradients, and the graph's own memory holds them.
  model_->zero_grad();
  at::Tensor loss;
  for (const at::Tensor& tokens : tokens_.unbind()) {
    tell("forward");
    const at::Tensor share = model_->loss(tokens) / static_cast<double>(tokens_.size(0));
    tell("backward");
    share.backward();
    loss = loss.defined() ? loss + share.detach() : share.detach();
  }
  tell("update");
  const at::Tensor norm = global_norm(*model_);
  figures_.copy_(at::stack({loss, norm.to(loss.scalar_type())}));
  const at::Tensor skip = figures_.isfinite().all().logical_not().to(at::kFloat);
  clip_to_norm(*model_, norm, grad_clip_);
  optimizer_.step(lr_, skip);
}

// The last one is the rehearsal: what would break a capture half-way is found while it still has a name.
void GraphStep::warm_up(const Tell& tell) {
  std::optional<NoWaiting> rehearsal;
  if (warmed_up_ + 1 == kWarmUp) rehearsal.emplace();
  try {
    compute(tell);
  } catch (const c10::Error& error) {
    if (!rehearsal || !refused_to_wait(error)) throw;
    throw Unsupported(
        "train.cuda_graph: something in the forward or backward pass waits for the GPU, which a graph cannot hold; see "
        "the routes that were taken, or set it to false");
  }
  ++warmed_up_;
}

void GraphStep::capture() {
  c10::cuda::CUDACachingAllocator::emptyCache();  // what the warm-up used would lie idle beside the graph's memory
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  graph->capture_begin();
  try {
    compute([](std::string_view) {});
    graph->capture_end();
  } catch (const c10::Error& error) {
    try {
      graph->capture_end();            // or the stream stays as it is
    } catch (const std::exception&) {  // the first error is the one that tells
    }
    const std::string why = error.what_without_backtrace();
    throw Unsupported("train.cuda_graph: the step cannot be captured: " + why.substr(0, why.find('\n')));
  }
  gradients_.clear();
  for (const at::Tensor& parameter : parameters_) gradients_.push_back(parameter.grad());
  graph_ = std::move(graph);
}

void GraphStep::release() {
  gradients_.clear();
  graph_.reset();
  if (stream_) c10::cuda::CUDACachingAllocator::emptyCache();
}

void GraphStep::hand_out_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = gradients_[i];
}

}  // namespace nsa::train
