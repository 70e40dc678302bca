// The emulated counterpart of the header of this name: the products alone, not the copy engine and its barriers.
#pragma once

#include "nsa/kernels/common/ptx.cuh"

namespace nsa::kernels::hopper {

inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
inline void publish_to_async() { emulation::publish_to_async(); }

inline std::uint64_t operand(std::uint32_t address, int leading_bytes, int stride_bytes) {
  return (address & 0x3FFFF) >> 4 | static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(stride_bytes >> 4) << 32 | std::uint64_t{1} << 62;
}
inline void products_begin() { emulation::products_begin(); }
inline void products_commit() { emulation::products_commit(); }
template <int Pending>
void products_wait() {
  emulation::products_wait(Pending);
}
template <int N>
void pin(float (&)[N][4]) {}

template <typename T, int N>
struct Product {
  template <int Accumulate>
  static void keys(float (&c)[N / 8][4], std::uint64_t a, std::uint64_t b) {
    emulation::start_product(&c[0][0], N, Accumulate, nullptr, a, b, widened<T>);
  }
  template <int Accumulate = 1>
  static void values(float (&c)[N / 8][4], const std::uint32_t (&a)[4], std::uint64_t b) {
    emulation::start_product(&c[0][0], N, Accumulate, a, 0, b, widened<T>);
  }
};

}  // namespace nsa::kernels::hopper
