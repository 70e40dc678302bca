// The emulated counterpart of the header of this name.
#pragma once

#include "nsa/kernels/tests/emulation/cuda.hpp"

namespace nsa::kernels {

using bf16 = __nv_bfloat16;
using fp16 = __half;

inline std::uint32_t shared_address(const void* pointer) { return emulation::shared_address(pointer); }
inline void cp_async(std::uint32_t destination, const void* source, bool valid) {
  emulation::cp_async(destination, valid ? source : nullptr);
}
inline void cp_async_commit() { emulation::cp_async_commit(); }
template <int Pending>
void cp_async_wait() {
  emulation::cp_async_wait(Pending);
}

inline void store_whole(uint4* to, const uint4& x) { *to = x; }
inline void hold(uint4&) {}
inline uint4 load_now(const uint4* from) { return *from; }
inline float2 load_now(const float2* from) { return *from; }

inline void ldmatrix(std::uint32_t (&r)[4], std::uint32_t address) { emulation::ldmatrix(r, address, false); }
inline void ldmatrix_trans(std::uint32_t (&r)[4], std::uint32_t address) { emulation::ldmatrix(r, address, true); }
template <typename T>
float widened(std::uint16_t bits) {
  return static_cast<float>(std::bit_cast<T>(bits));
}
template <typename T>
void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  emulation::mma(c, a, b0, b1, widened<T>);
}

template <typename T>
std::uint32_t pack(float low, float high) {
  return std::bit_cast<std::uint16_t>(T(low)) | static_cast<std::uint32_t>(std::bit_cast<std::uint16_t>(T(high))) << 16;
}
template <typename T>
float2 unpack(std::uint32_t both) {
  return {widened<T>(static_cast<std::uint16_t>(both)), widened<T>(static_cast<std::uint16_t>(both >> 16))};
}

inline float multiply_rounded(float x, float y) { return x * y; }
inline void prefetch_line(const void*) {}
inline float exp2_fast(float x) { return std::exp2(x); }
inline float reciprocal_fast(float x) { return 1.f / x; }

}  // namespace nsa::kernels
