// More dynamic shared memory than every GPU grants a kernel unasked.
#pragma once

#include <cuda_runtime_api.h>

namespace nsa::kernels {

// The current device grants `kernel`, a __global__ function, so many bytes from now on, or more. The runtime is asked
// when they are more than ever before, not at every launch: its answer costs the host's time. What the runtime says.
cudaError_t grant_shared(const void* kernel, int bytes);

template <typename... Parameters>
cudaError_t grant_shared(void (*kernel)(Parameters...), int bytes) {
  return grant_shared(reinterpret_cast<const void*>(kernel), bytes);
}

}  // namespace nsa::kernels
