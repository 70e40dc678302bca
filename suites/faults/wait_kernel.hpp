// What the kernel of wait.cu is given: plain, no LibTorch, as in nsa/kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace suites {

// Of calls that are counted from 1: every `every`-th one waits, the n-th for first + n * more nanoseconds, `most` at
// most.
struct WaitLaw {
  std::uint64_t first = 0, more = 0, most = 0;
  std::uint64_t every = 1;

  [[nodiscard]] constexpr std::uint64_t of(std::uint64_t n) const {
    if (n % every != 0) return 0;
    const std::uint64_t due = first + n * more;
    return due < most ? due : most;
  }
};

// Counts *calls on, on the device, and lets the stream stand still for as long as the law says. A CUDA graph that holds
// the launch counts at each replay.
void launch_wait(const WaitLaw& law, std::uint64_t* calls, cudaStream_t stream);

}  // namespace suites
