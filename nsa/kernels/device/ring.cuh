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

// The same for a loop in which every cycle counts: place and parity are kept, where Ring divides the step.
template <int Places>
class KeptRing {
 public:
  __device__ int place() const { return place_; }
  __device__ std::uint32_t parity() const { return parity_; }
  __device__ void advance() {
    const bool round = ++place_ == Places;
    place_ = round ? 0 : place_;
    parity_ ^= round ? 1 : 0;
  }

 private:
  int place_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace nsa::kernels::hopper
