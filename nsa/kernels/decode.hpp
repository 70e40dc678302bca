// One token of decoding against the caches: the three branches, the choice of blocks and the gated sum (Eq 5 to 12) in
// four launches, two where every block is taken. Keys and values are read where they lie, each once a group; nothing
// is gathered and nothing sorted.
#pragma once

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

// The query is token t of every row of the batch, and the caches end with it: every compressed key is complete, every
// key of the window is seen, and of the selected branch's those up to t.
struct Decode {
  Rows q;                       // [B,1,Hq,Dk]
  Rows k_cmp, v_cmp;            // [B,N,G,Dk], [B,N,G,Dv]
  Rows k_sel, v_sel;            // [B,t+1,G,Dk], [B,t+1,G,Dv]
  Rows k_win, v_win;            // [B,window,G,Dk], [B,window,G,Dv], in any order
  const void* gates = nullptr;  // [B,1,G,3] contiguous, storage type or fp32 (gates_fp32); order cmp, sel, win
  bool gates_fp32 = false;
  Rows o;                 // [B,1,Hq,Dv], written
  Rows branch[3];         // [B,1,Hq,Dv] in the order of the gates, written where `data` is not null
  int* blocks = nullptr;  // [B,1,G,n], written: ascending, tail -1
  void* workspace = nullptr;
  Geometry geometry;
  int B = 0, t = 0, N = 0, window = 0, Hq = 0, G = 0, Dk = 0, Dv = 0;
  float scale = 0;  // 1/sqrt(Dk)
  Storage storage = Storage::bf16;
};
struct DecodePlan;  // plan/decode_plan.hpp
void decode(const Decode& p, const DecodePlan& plan, cudaStream_t stream);

}  // namespace nsa::kernels
