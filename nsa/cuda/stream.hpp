// Where the kernels of a call run. Their emulation (nsa/kernels/tests/emulation) has neither device nor stream: it
// takes tensors of the processor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAEvent.h>
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

// A second stream for work that may run beside the current one's. It begins after all that the current stream was given
// so far, and what the current stream is given after join() waits for it; an exception joins too. Also within the
// capture of a CUDA graph. Memory that the work uses must live until join().
class Beside {
 public:
  Beside();  // of the current device, a GPU
  ~Beside();
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  void join();

 private:
  c10::cuda::CUDAStream current_, stream_;
  bool joined_ = false;
};

}  // namespace nsa::cuda
