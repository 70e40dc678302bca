// Attention of every query over the keys that its branch lets it see, forward and backward, by the kernels that a plan
// names. Rows of a tile are (token, head of the group) pairs, so that any number of heads a group fills the tensor
// cores' rows and K, V are read once a group.
#pragma once

#include "nsa/kernels/combine.hpp"
#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

struct AttentionPlan;  // plan/attention_plan.hpp

// compressed: key row i is a compressed block, seen when complete (i*d + l - 1 <= t). window: the tokens [t-w+1, t].
// selected: the tokens <= t of the blocks in `blocks`.
enum class Mask { compressed, window, selected };

// The selection blocks that the numbers in a table of blocks mean.
struct SelectionBlocks {
  int J = 0;                             // of a batch entry (packed: of all documents together)
  const int* document_blocks = nullptr;  // packed: [S] number of the first block of the token's document; null: 0
  const int* starts = nullptr;           // packed: [J] first token of each block; null: j * l_sel
  const int* ends = nullptr;             // packed: [J] one past its last token; null: min(S, (j+1) * l_sel)
};

// Statistics of a row [B,Hq,S,2] fp32: the maximum of log2(e)/sqrt(Dk) * q.k, and the sum of 2^(that - maximum); (-inf,
// 0) for a row that sees nothing. Both, not their logarithm: one ulp of an LSE near 1e4 is 1e-3.
struct AttentionForward {
  Rows q;                  // [B,S,Hq,Dk]
  Rows k, v;               // [B,N,G,Dk], [B,N,G,Dv]
  Rows o;                  // [B,S,Hq,Dv], every element is written
  float* stats = nullptr;  // [B,Hq,S,2], every element is written
  // Selected: [B,S,G,n] numbers from the start of the document; outside it or twice: ignored.
  const int* blocks = nullptr;
  SelectionBlocks selection;  // selected
  void* workspace = nullptr;  // AttentionPlan::workspace bytes, aligned to 256
  Packed packed;
  Geometry geometry;
  int B = 0, S = 0, N = 0, Hq = 0, G = 0, Dk = 0, Dv = 0;
  float scale = 0;  // 1/sqrt(Dk)
  Storage storage = Storage::bf16;
  Mask mask = Mask::window;
};
// Launches what the plan says, which is plan_forward's of this problem and the current device.
void attention_forward(const AttentionForward& p, const AttentionPlan& plan, cudaStream_t stream);

// The compressed branch and the choice of blocks: `blocks` is Select's (select.hpp). Only for a plan of
// Variant::intervals_and_choice. Of finite inputs the same to the bit as attention_forward and select_blocks by wgmma.
void forward_and_select(const AttentionForward& p, int* blocks, const AttentionPlan& plan, cudaStream_t stream);

// The window branch, and the gated sum of which it is the last: sum.branch[2] is p.o, the others have been computed.
// The same to the bit as one after the other; on Hopper one kernel, which spares reading p.o again and hides the rest.
void window_and_combine(const AttentionForward& p, const AttentionPlan& plan, const Combine& sum, cudaStream_t stream);

// delta = rowsum(do * o) [B,Hq,S] fp32.
struct AttentionDelta {
  Rows o, dout;            // [B,S,Hq,Dv]
  float* delta = nullptr;  // [B,Hq,S]
  int B = 0, S = 0, Hq = 0, Dv = 0;
  Storage storage = Storage::bf16;
};
void attention_delta(const AttentionDelta& p, cudaStream_t stream);

struct AttentionBackward {
  AttentionForward forward;      // as it was called; `o` and `workspace` are not read
  Rows dout;                     // [B,S,Hq,Dv]
  const float* delta = nullptr;  // [B,Hq,S]
  Rows dq, dk, dv;               // as q, k, v; every element is written. A null `data` leaves that part out
  void* workspace = nullptr;     // AttentionPlan::workspace bytes, aligned to 256
  bool adds_dq = false;          // dQ is added to what dq holds, each rounded, as autograd would
  // Another stream of the same device, or null. What is launched there begins after all that the call's stream was
  // given before, and ends before all that it is given later.
  cudaStream_t beside = nullptr;
  // The event after which dout, delta and forward.stats are complete; null: they are when the call's turn on its stream
  // comes. The query lists, which read none of them, do not wait for it.
  cudaEvent_t rows_ready = nullptr;
};
// Launches what the plan says, which is plan_backward's of this problem or of a part of it (only_dq, only_dkv).
// Deterministic: every sum has a fixed order.
void attention_backward(const AttentionBackward& p, const AttentionPlan& plan, cudaStream_t stream);

}  // namespace nsa::kernels
