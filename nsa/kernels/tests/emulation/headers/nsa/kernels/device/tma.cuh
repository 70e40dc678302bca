// The emulated counterpart of the header of this name.
#pragma once

#include "nsa/kernels/device/mbarrier.cuh"

namespace nsa::kernels::hopper {

inline void tma_load(std::uint32_t destination, const void* map, int row, int head, int batch, std::uint32_t barrier) {
  emulation::tma_load(destination, map, {0, row, 0, head, batch}, barrier);
}
inline void tma_load_rows(std::uint32_t destination, const void* map, int head, int token, int slab, int batch,
                          std::uint32_t barrier) {
  emulation::tma_load(destination, map, {0, head, token, slab, batch}, barrier);
}
inline void tma_store_rows(const void* map, std::uint32_t from, int head, int token, int slab, int batch) {
  emulation::tma_store(map, from, {0, head, token, slab, batch}, false);
}
inline void tma_add_rows(const void* map, std::uint32_t from, int head, int token, int slab, int batch) {
  emulation::tma_store(map, from, {0, head, token, slab, batch}, true);
}
inline void bulk_load(std::uint32_t destination, const void* from, int bytes, std::uint32_t barrier) {
  emulation::bulk_load(destination, from, bytes, barrier);
}
inline void st_shared(std::uint32_t to, const float4& x) {
  *reinterpret_cast<float4*>(emulation::to_be_published(to)) = x;
}
inline float4 ld_shared(std::uint32_t from) { return *reinterpret_cast<const float4*>(emulation::shared_at(from, 16)); }
inline void bulk_store(float* to, std::uint32_t from, int bytes) { emulation::bulk_store(to, from, bytes, false); }
inline void bulk_reduce_add(float* to, std::uint32_t from, int bytes) { emulation::bulk_store(to, from, bytes, true); }
inline void bulk_wait_read() { emulation::bulk_wait(); }
inline void bulk_wait() { emulation::bulk_wait(); }
inline void wait_for_turn(const int* number, int expected) { emulation::wait_for_turn(number, expected); }
inline void pass_turn(int* number, int next) { emulation::pass_turn(number, next); }

}  // namespace nsa::kernels::hopper
