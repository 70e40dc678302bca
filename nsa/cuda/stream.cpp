#include "nsa/cuda/stream.hpp"

#include <ATen/cuda/CUDAContext.h>

#include <exception>
#include <optional>

namespace nsa::cuda {

cudaStream_t stream_of(at::Device device) {
  return device.is_cuda() ? at::cuda::getCurrentCUDAStream(device.index()).stream() : nullptr;
}

namespace {

// Most often there is nothing to do, and then nothing to undo either.
std::optional<at::Device> other_device(const at::Tensor& t) {
  return t.is_cuda() && c10::cuda::current_device() != t.get_device() ? std::optional(t.device()) : std::nullopt;
}

}  // namespace

OnDeviceOf::OnDeviceOf(const at::Tensor& t) : guard_(other_device(t)), stream_(stream_of(t.device())) {}

namespace {

void wait_for(const c10::cuda::CUDAStream& later, const c10::cuda::CUDAStream& earlier) {
  c10::cuda::CUDAEvent event;
  event.record(earlier);
  event.block(later);
}

}  // namespace

Beside::Beside() : current_(c10::cuda::getCurrentCUDAStream()), stream_(c10::cuda::getStreamFromPool()) {
  wait_for(stream_, current_);
}

Beside::~Beside() {
  if (joined_) return;
  try {
    join();
  } catch (const std::exception&) {  // the one on its way says more
  }
}

void Beside::join() {
  joined_ = true;
  wait_for(current_, stream_);
}

}  // namespace nsa::cuda
