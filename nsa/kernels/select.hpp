// Importance of the compressed blocks, overlap weights, sum over the group's heads and top-n in one kernel (Eq 8 to
// 11): no [S, N_c] and no [S, S/l'] tensor exists.
#pragma once

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

constexpr int kMostBlocks = 64;  // n

struct Select {
  Rows q;                        // [B,S,Hq,Dk]
  Rows k_cmp;                    // [B,N,G,Dk]
  const float* stats = nullptr;  // [B,Hq,S,2] of attention_forward(Mask::compressed) on the same q and k_cmp
  int* blocks = nullptr;         // [B,S,G,n], every element is written: ascending, tail -1, from the document's start
  Packed packed;
  Geometry geometry;
  int B = 0, S = 0, N = 0, Hq = 0, G = 0, Dk = 0;
  float scale = 0;  // 1/sqrt(Dk)
  Storage storage = Storage::bf16;
};
struct SelectPlan;  // plan/select_plan.hpp
void select_blocks(const Select& p, const SelectPlan& plan, cudaStream_t stream);

}  // namespace nsa::kernels
