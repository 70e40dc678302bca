// The SiLU of the MLP in the products around it (Hopper): forward behind the one that makes its input, backward behind
// the one that makes the gradient of its result. Inputs and results of 16 bits, sums in fp32 in the order of the
// columns summed over; what is stored is rounded before the SiLU or its derivative sees it, as by functions one after
// another.
#pragma once

#include <cstdint>
#include <string>

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

struct Device;  // plan/device.hpp

// All matrices contiguous, beginning at multiples of 16 bytes.
struct SiluProduct {
  const void* x = nullptr;  // [rows,inner]
  const void* w = nullptr;  // [wide,inner]
  void* hidden = nullptr;   // [rows,wide], written: x w^T
  void* active = nullptr;   // [rows,wide], written: hidden / (1 + exp(-hidden))
  int rows = 0, inner = 0, wide = 0;
  Storage storage = Storage::bf16;
};
struct SiluProductBackward {
  const void* dy = nullptr;      // [rows,inner]
  const void* w = nullptr;       // [inner,wide]
  const void* hidden = nullptr;  // [rows,wide]
  void* dhidden = nullptr;       // [rows,wide], written: (dy w) silu'(hidden)
  int rows = 0, inner = 0, wide = 0;
  Storage storage = Storage::bf16;
};

// "" where both serve these sizes on the device, else what was asked and what is served: Hopper; inner and wide
// multiples of 64; rows enough for a tile for every other SM (Limits::sms_a_silu_tile).
[[nodiscard]] std::string silu_product_refusal(std::int64_t rows, std::int64_t inner, std::int64_t wide,
                                               const Device& device);
// A launch each.
void silu_product(const SiluProduct& p, const Device& device, cudaStream_t stream);
void silu_product_backward(const SiluProductBackward& p, const Device& device, cudaStream_t stream);

}  // namespace nsa::kernels
