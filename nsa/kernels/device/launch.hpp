// How a kernel gets onto a stream: at once, or collected with those of its chain (launch/submission.hpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

namespace nsa::kernels {

// One launch. `values` point to the arguments, `sizes` are theirs in bytes.
struct LaunchCall {
  const void* kernel = nullptr;  // a __global__ function
  dim3 ctas, threads;
  std::size_t bytes = 0;  // dynamic shared memory
  bool early = false;     // Note [Early kernels], early.cuh
  std::span<void* const> values;
  std::span<const std::size_t> sizes;
};

// A refusal is cudaPeekAtLastError()'s to tell: check_launch() (params.hpp) follows every launch, or every few.
void put_on(cudaStream_t stream, const LaunchCall& call);

// What is not a launch by put_on() comes after this on its stream: cudaMemsetAsync, a wait for another stream, ATen.
// What the thread has collected is launched one by one, and so is what follows until its Submission ends. Throws
// LaunchError.
void end_collecting();

}  // namespace nsa::kernels
