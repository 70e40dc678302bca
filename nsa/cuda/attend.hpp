// Attention of one branch on our kernels; the three branches differ in their Mask.
#pragma once

#include "nsa/cuda/packing.hpp"
#include "nsa/kernels/attention/params.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

// What both passes need besides the tensors.
struct Problem {
  kernels::Mask mask;
  Geometry geometry;
  Packing packing;
};

struct AttentionOutput {
  at::Tensor o;      // [B,S,Hq,Dv]
  at::Tensor stats;  // [B,Hq,S,2]
};
// One forward pass without autograd. q, k, v aligned (rows.hpp); `blocks` [B,S,G,n] for Mask::selected, else undefined.
[[nodiscard]] AttentionOutput attend_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const at::Tensor& blocks, const Problem& problem);

}  // namespace nsa::cuda
