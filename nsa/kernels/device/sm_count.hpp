// What the launches of persistent kernels ask the current device.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "nsa/kernels/params.hpp"

namespace nsa::kernels::hopper {

// Throws LaunchError in the name of `kernel` when the runtime does not answer.
inline int sm_count(const char* kernel) {
  int device = 0, count = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) throw LaunchError(std::string(kernel) + ": " + cudaGetErrorString(error));
  return count;
}

}  // namespace nsa::kernels::hopper
