// Where the kernels of a call run. Their emulation (nsa/kernels/emulation) has neither device nor stream: it takes
// tensors of the processor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

namespace nsa::cuda {

// The current stream of a device; null for the processor.
[[nodiscard]] cudaStream_t stream_of(at::Device device);

// While it lives, the device of a tensor is the current one.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const at::Tensor& t);
  [[nodiscard]] cudaStream_t stream() const { return stream_; }

 private:
  c10::cuda::OptionalCUDAGuard guard_;
  cudaStream_t stream_;
};

}  // namespace nsa::cuda
