#include "suites/probes/maxima.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <fmt/format.h>

#include <limits>
#include <numeric>

#include "suites/probes/row_maxima_kernel.hpp"

namespace suites::probes {

namespace {

c10::Stream current_stream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

bool captures(at::Device device) {
  return device.is_cuda() && c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

// By ATen.
RowMaximaOf looked_at(const TensorRows& tensor) {
  const auto& [t, row, positive] = tensor;
  std::vector<std::int64_t> others;
  for (std::int64_t i = 0; i < t.dim(); ++i) {
    if (i != row) others.push_back(i);
  }
  const auto wide = t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor largest =
      positive ? t.amax(others).clamp_min(0).to(wide)
               : at::linalg_vector_norm(t, std::numeric_limits<double>::infinity(), others, /*keepdim=*/false, wide);
  return {largest.view({-1}), {largest.numel()}};
}

}  // namespace

Maxima::Place Maxima::add(std::string_view name, const TensorRows& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor& value = tensor.value;
  if (!serves_row_maxima(value) || value.is_inference()) {  // which has no version
    batches_.push_back(looked_at(tensor));
    return {batches_.size() - 1, 0};
  }
  const c10::Stream stream = current_stream(value.device());
  if (stream_ != stream) look();
  if (waiting_.empty()) {
    stream_ = stream;
    capturing_ = captures(value.device());
    waiting_for_ = batches_.size();
    batches_.emplace_back();
  }
  const Place place{waiting_for_, waiting_.size()};
  waiting_.push_back({std::string(name), {value.detach(), tensor.row, tensor.positive}, value._version()});
  kept_ += value.storage().nbytes();
  if (look_ == Look::at_once || kept_ >= most_kept_ || waiting_.size() == RowMaxima::kMost) look();
  return place;
}

void Maxima::look() {
  if (waiting_.empty()) return;
  const at::NoGradGuard no_grad;
  const at::Device device = waiting_.front().tensor.value.device();
  std::vector<TensorRows> tensors;
  for (const Waiting& one : waiting_) {
    if (overwritten_.empty() && one.tensor.value._version() != one.version) overwritten_ = one.name;
    tensors.push_back(one.tensor);
  }
  {
    const c10::StreamGuard guard(*stream_);
    if (capturing_ && !captures(device))
      throw std::logic_error(fmt::format(
          "{} was given within the capture of a CUDA graph and not looked at within it (a backward pass does so at its "
          "end; without one: Look::at_once)",
          waiting_.front().name));
    batches_[waiting_for_] = row_maxima(tensors);
  }
  if (const c10::Stream current = current_stream(device); current != *stream_) {
    c10::Event looked(device.type());
    looked.record(*stream_);
    looked.block(current);
  }
  waiting_.clear();
  kept_ = 0;
}

void Maxima::clear() {
  batches_.clear();
  waiting_.clear();
  kept_ = 0;
  overwritten_.clear();
}

at::Tensor Maxima::all() const {
  if (!overwritten_.empty())
    throw StageOverwritten(fmt::format("{} was written in place before the watch had looked at it", overwritten_));
  if (batches_.empty()) return {};
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const RowMaximaOf& batch : batches_) parts.push_back(batch.values);
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

std::int64_t Maxima::count() const { return before(batches_.size()); }

std::pair<std::int64_t, std::int64_t> Maxima::of(Place place) const {
  const auto& ends = batches_[place.batch].ends;
  const std::int64_t first = place.slot == 0 ? 0 : ends[place.slot - 1];
  return {before(place.batch) + first, ends[place.slot] - first};
}

std::int64_t Maxima::before(std::size_t batch) const {
  return std::accumulate(batches_.begin(), batches_.begin() + static_cast<std::ptrdiff_t>(batch), std::int64_t{0},
                         [](std::int64_t sum, const RowMaximaOf& one) { return sum + one.ends.back(); });
}

}  // namespace suites::probes
