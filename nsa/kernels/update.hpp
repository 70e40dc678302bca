// The norm of many tensors, and AdamW over them in one pass over memory: the gradient is scaled (clipping), moments and
// the fp32 copy of the parameter are updated, and the parameter is written from its copy. Of a parameter 16 bytes are
// read and 14 written (the gradient's 2 more where it is scaled), where clipping, casts and update one by one move 60.
//
//   g = gradient * factor, as it is stored       factor = max_norm / norm where the norm is above it and finite, else 1
//   w -= lr * decay * w;  m += (1 - beta1) (g - m);  v += (1 - beta2) (g^2 - v)
//   w -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
// In fp32, with the operations of torch's fused kernel in their order.
#pragma once

#include <span>

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

struct UpdatedTensor {
  void* parameter = nullptr;    // [size], 16 bits; written
  void* gradient = nullptr;     // [size], 16 bits; written where it is scaled
  float* weight = nullptr;      // [size]; this and the next two are updated
  float* first = nullptr;       // [size], m
  float* second = nullptr;      // [size], v
  const float* step = nullptr;  // how many updates, this one counted
  std::int64_t size = 0;
};

struct Update {
  Storage storage = Storage::bf16;  // of parameters and gradients
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, decay = 0;
  // Numbers of the host, or of the device where there is a pointer.
  double rate = 0;
  const float* rate_there = nullptr;
  double norm = 0;  // of all gradients
  const float* norm_there = nullptr;
  double max_norm = 0;
  const float* skip = nullptr;  // where it is 1 nothing is written; null: it is not
};
// Tensors may be of any size and lie anywhere; where all of one's data begins at multiples of 16 bytes it is faster. No
// two may overlap. `tensors` is read before this returns.
void update(std::span<const UpdatedTensor> tensors, const Update& p, cudaStream_t stream);

struct StoredTensor {
  const void* data = nullptr;  // [size], 16 bits
  std::int64_t size = 0;
};
// The square root of the sum of all squares, to `norm`: chunks of 8192 elements in fp32, which are added in fp64 in
// their order, so that the bits hang on nothing but the tensors. A NaN or an infinity stays one. `parts`:
// norm_parts(tensors) floats, a workspace.
void norm_of(std::span<const StoredTensor> tensors, Storage storage, float* parts, float* norm, cudaStream_t stream);
[[nodiscard]] std::int64_t norm_parts(std::span<const StoredTensor> tensors);

}  // namespace nsa::kernels
