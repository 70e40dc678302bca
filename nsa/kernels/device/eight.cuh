// Eight neighbouring 16-bit values, one 16-byte access, as fp32: what the kernels that only stream memory work in.
#pragma once

#include "nsa/kernels/device/mma.cuh"
#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

inline constexpr int kEight = 8;

// The values 8*chunk.. of row (batch, token, head).
template <typename T>
__device__ inline uint4* chunk_of(const Rows& rows, int batch, int token, int head, int chunk) {
  const std::int64_t offset = batch * rows.batch + token * rows.token + head * rows.head + chunk * kEight;
  return reinterpret_cast<uint4*>(static_cast<T*>(rows.data) + offset);
}

template <typename T>
__device__ inline void widen(float (&x)[kEight], const uint4& raw) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 both = unpack<T>(words[i]);
    x[2 * i] = both.x;
    x[2 * i + 1] = both.y;
  }
}
template <typename T>
__device__ inline uint4 narrowed(const float (&x)[kEight]) {
  return make_uint4(pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]), pack<T>(x[6], x[7]));
}

// Two times eight added, rounded to T as they are.
template <typename T>
__device__ inline uint4 added(const uint4& x, const uint4& y) {
  float a[kEight], b[kEight];
  widen<T>(a, x);
  widen<T>(b, y);
#pragma unroll
  for (int i = 0; i < kEight; ++i) a[i] += b[i];
  return narrowed<T>(a);
}

template <typename T>
__device__ inline void load(float (&x)[kEight], const uint4* from) {
  widen<T>(x, *from);
}
template <typename T>
__device__ inline void store(uint4* to, const float (&x)[kEight]) {
  store_whole(to, narrowed<T>(x));
}

}  // namespace nsa::kernels
