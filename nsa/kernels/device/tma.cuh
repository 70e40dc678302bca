// Copies by TMA: boxes of a tensor, bytes in one piece; and turns of CTAs, which order what it adds to memory.
#pragma once

#include "nsa/kernels/device/mbarrier.cuh"

namespace nsa::kernels::hopper {

// A box of a 5-dimensional tensor (see tensor_map.hpp); rows outside the tensor arrive as zeros. `barrier`
// counts the bytes.
__device__ inline void tma_load(std::uint32_t destination, const void* map, int row, int head, int batch,
                                std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %3, %5, "
      "%6}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// The same of a tensor as rows_map (tensor_map.hpp) describes it: one slab of 64 columns.
__device__ inline void tma_load_rows(std::uint32_t destination, const void* map, int head, int token, int slab,
                                     int batch, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
      "%7}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(0), "r"(head), "r"(token), "r"(slab), "r"(batch)
      : "memory");
}
// The same slab from shared memory to the tensor, or added to what that holds, in the tensor's type: what of it lies
// outside is left out. One thread; waits are those of bulk_store.
__device__ inline void tma_store_rows(const void* map, std::uint32_t from, int head, int token, int slab, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];\n"
      "cp.async.bulk.commit_group;" ::"l"(map),
      "r"(0), "r"(head), "r"(token), "r"(slab), "r"(batch), "r"(from)
      : "memory");
}
__device__ inline void tma_add_rows(const void* map, std::uint32_t from, int head, int token, int slab, int batch) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];\n"
      "cp.async.bulk.commit_group;" ::"l"(map),
      "r"(0), "r"(head), "r"(token), "r"(slab), "r"(batch), "r"(from)
      : "memory");
}
// So many bytes, a multiple of 16 as both addresses are.
__device__ inline void bulk_load(std::uint32_t destination, const void* from, int bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// 16 bytes of shared memory that TMA is to read (after fence_proxy_async).
__device__ inline void st_shared(std::uint32_t to, const float4& x) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}
// The same that TMA wrote.
__device__ inline float4 ld_shared(std::uint32_t from) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(from)
               : "memory");
  return x;
}
// From shared memory to `to`, or added to the fp32 there. One thread; bulk_wait_read(): all that it started so was
// read; bulk_wait(): has been written too.
__device__ inline void bulk_store(float* to, std::uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_reduce_add(float* to, std::uint32_t from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(
          to),
      "r"(from), "r"(bytes)
      : "memory");
}
__device__ inline void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- turns of CTAs: numbers in memory

// Until the number is this one. What was done before it was passed on is then done, for TMA too.
__device__ inline void wait_for_turn(const int* number, int expected) {
  int found;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(number) : "memory");
  } while (found != expected);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// What this thread has seen done, it and others, is done for who waits for `next`.
__device__ inline void pass_turn(int* number, int next) {
  asm volatile("fence.proxy.async.global;\nst.release.gpu.global.s32 [%0], %1;" ::"l"(number), "r"(next) : "memory");
}

}  // namespace nsa::kernels::hopper
