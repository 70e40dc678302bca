// The gates of a (token, group), and a branch's share of the sum.
#pragma once

#include "nsa/kernels/combine.hpp"
#include "nsa/kernels/device/eight.cuh"

namespace nsa::kernels {

inline constexpr int kBranches = 3;

// Intrinsics throughout: LibTorch's flags switch the conversion operators of these types off.
template <typename T>
__device__ inline float wide(T x);
template <>
__device__ inline float wide<float>(float x) {
  return x;
}
template <>
__device__ inline float wide<bf16>(bf16 x) {
  return __bfloat162float(x);
}
template <>
__device__ inline float wide<fp16>(fp16 x) {
  return __half2float(x);
}

// The place of the three gates of (batch, token, group) in [B,S,G,3].
__device__ inline std::int64_t gate_place(const Combine& p, int b, int t, int g) {
  return ((static_cast<std::int64_t>(b) * p.S + t) * p.G + g) * kBranches;
}
template <typename Gate>
__device__ inline float gate_of(const Combine& p, int b, int t, int g, int branch) {
  return wide(static_cast<const Gate*>(p.gates)[gate_place(p, b, t, g) + branch]);
}
template <typename Gate>
__device__ inline void load_gates(float (&gate)[kBranches], const Combine& p, int b, int t, int g) {
  const Gate* from = static_cast<const Gate*>(p.gates) + gate_place(p, b, t, g);
#pragma unroll
  for (int i = 0; i < kBranches; ++i) gate[i] = wide(from[i]);
}

// Eight values of a branch. In the order of the branches, from 0 on: so every kernel's sum is the same to the bit.
template <typename T>
__device__ inline void add_gated(float (&sum)[kEight], float gate, const uint4& branch) {
  float o[kEight];
  widen<T>(o, branch);
#pragma unroll
  for (int c = 0; c < kEight; ++c) sum[c] = fmaf(gate, o[c], sum[c]);
}

}  // namespace nsa::kernels
