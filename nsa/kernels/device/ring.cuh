// A place in a ring in shared memory that is gone round again and again, and the parity of its barriers there.
#pragma once

#include <cstdint>

namespace nsa::kernels::hopper {

template <int Places>
struct Ring {
  unsigned step = 0;
  __device__ int place() const { return step % Places; }
  __device__ Ring last() const { return {step - 1}; }
  __device__ std::uint32_t parity() const { return step / Places & 1; }
  __device__ void advance() { ++step; }
};

}  // namespace nsa::kernels::hopper
