#include "nsa/cuda/stream.hpp"

#include <ATen/cuda/CUDAContext.h>

namespace nsa::cuda {

cudaStream_t stream_of(at::Device device) {
  return device.is_cuda() ? at::cuda::getCurrentCUDAStream(device.index()).stream() : nullptr;
}

OnDeviceOf::OnDeviceOf(const at::Tensor& t)
    : guard_(t.is_cuda() ? std::optional(t.device()) : std::nullopt), stream_(stream_of(t.device())) {}

}  // namespace nsa::cuda
