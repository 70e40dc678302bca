// The emulated counterpart of the header of this name.
#pragma once

#include "nsa/kernels/device/mma.cuh"

namespace nsa::kernels::hopper {

inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

inline std::uint32_t anew(std::uint32_t x) { return x; }

inline void barrier_start(std::uint32_t barrier, int arrivals) { emulation::barrier_start(barrier, arrivals); }
inline void barrier_arrive(std::uint32_t barrier) { emulation::barrier_arrive(barrier); }
inline void barrier_expect(std::uint32_t barrier, int bytes) { emulation::barrier_expect(barrier, bytes); }
inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) { emulation::barrier_wait(barrier, parity); }
inline void store_matrices(std::uint32_t address, const std::uint32_t (&r)[4]) {
  const uint4 row = emulation::row_of_matrices(r);
  *reinterpret_cast<uint4*>(emulation::to_be_published(address)) = row;
}
inline void publish_to_async() { emulation::publish_to_async(); }
inline void publish_barriers() { emulation::publish_barriers(); }
inline void warpgroup_barrier(int number) { emulation::warpgroup_barrier(number); }
inline void meet(int number, int threads) { emulation::meet(number, threads); }
inline void load_bulk(std::uint32_t destination, const void* from, int bytes, std::uint32_t barrier) {
  emulation::load_bulk(destination, from, bytes, barrier);
}
inline void stage(std::uint32_t to, const float4& x) { *reinterpret_cast<float4*>(emulation::to_be_published(to)) = x; }
inline void store_bulk(float* to, std::uint32_t from, int bytes) { emulation::copy_bulk(to, from, bytes, false); }
inline void add_bulk(float* to, std::uint32_t from, int bytes) { emulation::copy_bulk(to, from, bytes, true); }
inline void wait_bulk_read() { emulation::wait_bulk(); }
inline void wait_bulk() { emulation::wait_bulk(); }
inline void wait_for_turn(const int* number, int expected) { emulation::wait_for_turn(number, expected); }
inline void pass_turn(int* number, int next) { emulation::pass_turn(number, next); }
inline void copy_box(std::uint32_t destination, const void* map, int row, int head, int batch, std::uint32_t barrier) {
  emulation::copy_box(destination, map, {0, row, 0, head, batch}, barrier);
}
inline void copy_rows(std::uint32_t destination, const void* map, int head, int token, int slab, int batch,
                      std::uint32_t barrier) {
  emulation::copy_box(destination, map, {0, head, token, slab, batch}, barrier);
}
template <int Count>
void take_registers() {
  emulation::set_registers(Count, true);
}
template <int Count>
void give_registers() {
  emulation::set_registers(Count, false);
}

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
