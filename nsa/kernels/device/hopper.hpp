// Which kernels a device has code of. What it never launches is not compiled for it, and loud: __trap().
//   Namespace hopper: for sm_90a alone (`#if NSA_ON_HOPPER`).
//   mma.sync, where plans leave it to namespace hopper if there is wgmma (plan/README.md: dQ, dK, dV, and the selected
//   branch forward): for all others (`if constexpr (kLeftToHopper<Dk>) return __trap();`).
// The emulation has both.
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define NSA_ON_HOPPER 1
#else
#define NSA_ON_HOPPER 0
#endif

namespace nsa::kernels {

#if NSA_ON_HOPPER && defined(__CUDA_ARCH__)
template <int Dk>
inline constexpr bool kLeftToHopper = Dk % 64 == 0;
#else
template <int Dk>
inline constexpr bool kLeftToHopper = false;
#endif

}  // namespace nsa::kernels
