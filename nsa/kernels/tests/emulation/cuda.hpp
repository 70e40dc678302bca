// CUDA's words for g++: included before every translated source (translate.cmake). What they do is in fibers.cpp,
// barriers.cpp, products.cpp and tma.cpp.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "nsa/kernels/tests/emulation/emulator.hpp"

// NOLINTBEGIN(bugprone-reserved-identifier): the names are CUDA's own
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__ static  // one CTA runs at a time
#define __launch_bounds__(...)
#define __trap() nsa::kernels::emulation::fail("__trap()")
#define __CUDA_ARCH_FEAT_SM90_ALL

using std::max;
using std::min;

inline uint3 threadIdx, blockIdx;
inline dim3 gridDim, blockDim;

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  return nsa::kernels::emulation::allow_shared(reinterpret_cast<const void*>(kernel), bytes);
}

namespace nsa::kernels::emulation {

// Of a warp: every lane gets the value of the lane that it names.
template <typename T>
T from_lane(const char* name, unsigned lanes, T value, int lane) {
  struct Lane {
    T value;
    int from;
    T answer;
  } own{value, lane & 31, value};
  require(lanes == 0xffffffffu, "a collective of a part of a warp");
  together(name, own, [](Lane* const* all) {
    for (int i = 0; i < 32; ++i) all[i]->answer = all[all[i]->from]->value;
  });
  return own.answer;
}
template <typename T, typename Join>
T joined(const char* name, unsigned lanes, T value, Join) {
  require(lanes == 0xffffffffu, "a collective of a part of a warp");
  struct Lane {
    T value, answer;
  } own{value, value};
  together(name, own, [](Lane* const* all) {
    T sum = all[0]->value;
    for (int i = 1; i < 32; ++i) sum = Join()(sum, all[i]->value);
    for (int i = 0; i < 32; ++i) all[i]->answer = sum;
  });
  return own.answer;
}
inline int lane() { return static_cast<int>(threadIdx.x & 31); }

}  // namespace nsa::kernels::emulation

template <typename T>
T __shfl_sync(unsigned lanes, T value, int from) {
  return nsa::kernels::emulation::from_lane("__shfl_sync", lanes, value, from);
}
template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int mask) {
  return nsa::kernels::emulation::from_lane("__shfl_xor_sync", lanes, value, nsa::kernels::emulation::lane() ^ mask);
}
template <typename T>
T __shfl_up_sync(unsigned lanes, T value, int step) {
  const int own = nsa::kernels::emulation::lane();
  return nsa::kernels::emulation::from_lane("__shfl_up_sync", lanes, value, own < step ? own : own - step);
}
inline unsigned __ballot_sync(unsigned lanes, bool holds) {
  return nsa::kernels::emulation::joined("__ballot_sync", lanes, holds ? 1u << nsa::kernels::emulation::lane() : 0u,
                                         [](unsigned a, unsigned b) { return a | b; });
}
inline bool __any_sync(unsigned lanes, bool holds) {
  return nsa::kernels::emulation::joined("__any_sync", lanes, holds, [](bool a, bool b) { return a || b; });
}
template <typename T>
unsigned __match_any_sync(unsigned lanes, T value) {
  unsigned same = 0;
  for (int i = 0; i < 32; ++i)
    same |= nsa::kernels::emulation::from_lane("__match_any_sync", lanes, value, i) == value ? 1u << i : 0u;
  return same;
}
template <typename T>
T __reduce_max_sync(unsigned lanes, T value) {
  return nsa::kernels::emulation::joined("__reduce_max_sync", lanes, value, [](T a, T b) { return max(a, b); });
}
template <typename T>
T __reduce_min_sync(unsigned lanes, T value) {
  return nsa::kernels::emulation::joined("__reduce_min_sync", lanes, value, [](T a, T b) { return min(a, b); });
}
template <typename T>
T __reduce_add_sync(unsigned lanes, T value) {
  return nsa::kernels::emulation::joined("__reduce_add_sync", lanes, value, [](T a, T b) { return a + b; });
}
inline void __syncwarp() { nsa::kernels::emulation::sync_warp(); }
inline void __syncthreads() { nsa::kernels::emulation::cta_barrier(); }
inline void __threadfence() { nsa::kernels::emulation::thread_fence(); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcg(const T* from) {
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
void __stcg(T* to, const T& x) {
  *to = x;
}
template <typename T>
void __stcs(T* to, const T& x) {
  *to = x;
}
__attribute__((no_sanitize_thread)) inline unsigned atomicOr(unsigned* to, unsigned value) {
  nsa::kernels::emulation::atomic_access(to, sizeof *to);
  const unsigned before = *to;
  *to |= value;
  return before;
}
template <typename T>
__attribute__((no_sanitize_thread)) T atomicAdd(T* to, T value) {
  nsa::kernels::emulation::atomic_access(to, sizeof *to);
  const T before = *to;
  *to += value;
  return before;
}

// NOLINTEND(bugprone-reserved-identifier)
