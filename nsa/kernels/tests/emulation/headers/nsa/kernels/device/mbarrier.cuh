// The emulated counterpart of the header of this name.
#pragma once

#include "nsa/kernels/device/mma.cuh"

namespace nsa::kernels::hopper {

inline void mbarrier_init(std::uint32_t barrier, int arrivals) { emulation::mbarrier_init(barrier, arrivals); }
inline void mbarrier_arrive(std::uint32_t barrier) { emulation::mbarrier_arrive(barrier); }
inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, int bytes) {
  emulation::mbarrier_arrive_expect_tx(barrier, bytes);
}
inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) { emulation::mbarrier_wait(barrier, parity); }
inline void fence_proxy_async() { emulation::fence_proxy_async(); }
inline void fence_mbarrier_init() { emulation::fence_mbarrier_init(); }
inline void bar_sync_warpgroup(int number) { emulation::bar_sync_warpgroup(number); }
inline void bar_sync(int number, int threads) { emulation::bar_sync(number, threads); }

}  // namespace nsa::kernels::hopper
