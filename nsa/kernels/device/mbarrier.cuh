// What threads of a CTA meet at on Hopper: barriers in shared memory that count arrivals and bytes (mbarrier), and
// barriers with a number (bar.sync); what makes their writes visible to wgmma and TMA.
#pragma once

#include "nsa/kernels/device/mma.cuh"

namespace nsa::kernels::hopper {

__device__ inline void mbarrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and the phase ends only after so many bytes were copied too.
__device__ inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of this parity has ended; a new barrier counts as one whose phase of parity 1 has.
__device__ inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra end;\nbra "
      "wait;\nend:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Makes this thread's plain writes to shared memory visible to wgmma and TMA.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// All threads of a warpgroup meet, and have then seen each other's writes. `number` is theirs alone: 1 to 15.
__device__ inline void bar_sync_warpgroup(int number) { asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory"); }

// So many threads, whole warps, meet in the same way.
__device__ inline void bar_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace nsa::kernels::hopper
