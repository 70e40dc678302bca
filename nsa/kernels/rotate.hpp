// RoPE and the mean query on the rows of one product: what lies between a layer's projections and its attention. A row
// is what one token is given, [q | k_cmp | k_sel | k_win | v_cmp | v_sel | v_win], heads one after another.
#pragma once

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

inline constexpr int kKinds = 3;  // of keys and of values, in the order cmp, sel, win

struct Rotate {
  void* rows = nullptr;              // [B,S,width] contiguous; q and all keys are turned where they lie
  const float* rotations = nullptr;  // [S,Dk/2,2] contiguous: cosine and sine of every pair (2i, 2i+1)
  float* mean = nullptr;             // [B,S,G,Dk] contiguous, written: over the heads of a group, before they turn
  std::int64_t width = 0;            // Hq Dk + 3 G (Dk + Dv)
  int B = 0, S = 0, Hq = 0, G = 0, Dk = 0, Dv = 0;  // widths: multiples of 8
  Storage storage = Storage::bf16;
};
void rotate_forward(const Rotate& p, cudaStream_t stream);

struct RotateBackward {
  Rotate forward;                // `rows`: [B,S,width], every element is written; `mean` is not looked at
  Rows dq;                       // [B,S,Hq,Dk]; a null `data`, here and below: no gradient, which is 0
  Rows dk[kKinds], dv[kKinds];   // [B,S,G,Dk], [B,S,G,Dv]
  const float* dmean = nullptr;  // [B,S,G,Dk] contiguous, or null
};
void rotate_backward(const RotateBackward& p, cudaStream_t stream);

}  // namespace nsa::kernels
