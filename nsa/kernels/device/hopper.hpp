// Device code outside sm_90a: loud, not empty.
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define NSA_ON_HOPPER 1
#else
#define NSA_ON_HOPPER 0
#endif

namespace nsa::kernels {

// Two kinds of kernels, and what a device never launches is not compiled for it (plan/README.md says who launches
// what). Those in namespace hopper: `#if NSA_ON_HOPPER`. Those of mma.sync that a device with wgmma leaves to the
// former: they begin with `if constexpr (kLeftToHopper<Dk>) return __trap();`. On the CPU, where everything runs,
// never.
#if NSA_ON_HOPPER && defined(__CUDA_ARCH__)
template <int Dk>
inline constexpr bool kLeftToHopper = Dk % 64 == 0;
#else
template <int Dk>
inline constexpr bool kLeftToHopper = false;
#endif

}  // namespace nsa::kernels
