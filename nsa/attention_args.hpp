// The contract of all of attention in one call: compression and what follows it, in the names of its caller, who knows
// nothing of compressed keys.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "nsa/ops.hpp"

namespace nsa {

struct AttentionArgs {
  at::Tensor q;                           // [B,S,Hq,Dk]
  at::Tensor k, v;                        // [B,S,G,Dk], [B,S,G,Dv]: of the compressed branch
  at::Tensor k_sel, v_sel, k_win, v_win;  // the same of the others
  at::Tensor gates;                       // [B,S,G,3] in the order cmp, sel, win
  Geometry geometry;
  CuSeqlens cu_seqlens;
  std::optional<at::Tensor> blocks;  // [B,S,G,n]; absent: chosen
};

// As the other contracts of ops.hpp. What passes passes check(CompressArgs), and check(AttendArgs) with the compressed
// keys and values that come of it.
void check(const AttentionArgs& args);

}  // namespace nsa
