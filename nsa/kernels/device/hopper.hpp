// Whether the sm90 kernels can run: the current device is of compute capability 9.0 and they were compiled
// for sm_90a (NSA_HOPPER, set by the build when the list of architectures has it; "9.0" without the a has no wgmma).
#pragma once

#include <cuda_runtime_api.h>

namespace nsa::kernels::hopper {

inline bool is_here() {
#ifdef NSA_HOPPER
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
#else
  return false;
#endif
}

}  // namespace nsa::kernels::hopper

// Device code outside sm_90a: loud, not empty.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define NSA_ON_HOPPER 1
#else
#define NSA_ON_HOPPER 0
#endif
