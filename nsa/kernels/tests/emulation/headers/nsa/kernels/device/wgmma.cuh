// The emulated counterpart of the header of this name.
#pragma once

#include "nsa/kernels/device/tma.cuh"

namespace nsa::kernels::hopper {

inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

inline std::uint32_t anew(std::uint32_t x) { return x; }

inline void stmatrix(std::uint32_t address, const std::uint32_t (&r)[4]) {
  const uint4 row = emulation::row_of_matrices(r);
  *reinterpret_cast<uint4*>(emulation::to_be_published(address)) = row;
}
template <int Count, int Ctas = 1>
void setmaxnreg_inc() {
  emulation::setmaxnreg(Count, true, Ctas);
}
template <int Count, int Ctas = 1>
void setmaxnreg_dec() {
  emulation::setmaxnreg(Count, false, Ctas);
}

inline std::uint64_t wgmma_descriptor(std::uint32_t address, int leading_bytes, int stride_bytes) {
  return (address & 0x3FFFF) >> 4 | static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(stride_bytes >> 4) << 32 | std::uint64_t{1} << 62;
}
inline void wgmma_fence() { emulation::wgmma_fence(); }
inline void wgmma_commit() { emulation::wgmma_commit(); }
template <int Pending>
void wgmma_wait() {
  emulation::wgmma_wait(Pending);
}
template <int N>
void pin(float (&)[N][4]) {}

template <typename T, int N>
struct Wgmma {
  template <int Accumulate>
  static void keys(float (&c)[N / 8][4], std::uint64_t a, std::uint64_t b) {
    emulation::start_product(&c[0][0], N, Accumulate, emulation::Operands::columns, nullptr, a, b, widened<T>);
  }
  template <int Accumulate = 1>
  static void values(float (&c)[N / 8][4], const std::uint32_t (&a)[4], std::uint64_t b) {
    emulation::start_product(&c[0][0], N, Accumulate, emulation::Operands::registers, a, 0, b, widened<T>);
  }
  template <int Accumulate, bool OfRows>
  static void values(float (&c)[N / 8][4], std::uint64_t a, std::uint64_t b) {
    const auto operands = OfRows ? emulation::Operands::rows : emulation::Operands::columns_rows;
    emulation::start_product(&c[0][0], N, Accumulate, operands, nullptr, a, b, widened<T>);
  }
};

}  // namespace nsa::kernels::hopper
