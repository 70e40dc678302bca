// The gated sum of the three branches (Eq 5), and its backward pass fused with the row sums that the branches' own
// backward passes need: delta_b = rowsum(do_b * o_b), where do_b is g_b * do as it is stored, so that the row sums of
// P * (do_b . v - delta_b) are 0. The gate's gradient is the sum of do . o_b over the heads of the group.
//
// Note [Gated statistics]
// do_b need not be stored. A branch's backward pass takes it for P * (do_b . v - delta_b) and P * do_b: with g_b * P
// for P, do serves instead, and rowsum(do * o_b) for delta_b. And g_b * P is what P becomes when the row's sum of
// weights is divided by g_b. So the three branches read one do, and their kernels know nothing of gates.
#pragma once

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

struct Combine {
  const void* gates = nullptr;  // [B,S,G,3] contiguous, storage type or fp32 (gates_fp32); order cmp, sel, win
  bool gates_fp32 = false;
  Rows branch[3];  // [B,S,Hq,Dv] in the same order
  Rows o;          // [B,S,Hq,Dv], written
  int B = 0, S = 0, Hq = 0, G = 0, Dv = 0;
  Storage storage = Storage::bf16;
};
void combine_forward(const Combine& p, cudaStream_t stream);

struct CombineBackward {
  Combine forward;         // `o` is not read
  Rows dout;               // [B,S,Hq,Dv]
  Rows dbranch[3];         // [B,S,Hq,Dv], written: g_b * dout; a null `data` leaves it out
  void* dgates = nullptr;  // [B,S,G,3], type of gates, written; null: not wanted
  float* delta[3] = {};    // [B,Hq,S] fp32, written; null: not wanted
  // [B,Hq,S,2] fp32 (AttentionForward::stats), as the branches left them and, written, with the sum divided by the
  // gate. Where the latter is not null, delta[b] belongs to do instead of do_b. See Note [Gated statistics].
  const float* stats[3] = {};
  float* gated_stats[3] = {};
};
void combine_backward(const CombineBackward& p, cudaStream_t stream);

}  // namespace nsa::kernels
