// One token against the caches: the functions that a decoding step is made of, as a table that anything may wrap (the
// seam of decoding, as ops.hpp is that of a whole pass).
//
// A step has one query [B,1,Hq,Dk] at token t, which is the last that the caches hold. Hence no mask anywhere: every
// block in the cache is complete and every token in it is visible, only the window has dropped what it must not see.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "nsa/decode/cache.hpp"

namespace nsa::decode {

struct StepSelectArgs {
  at::Tensor q;      // [B,1,Hq,Dk]
  at::Tensor k_cmp;  // [B,G,N_c,Dk]: the complete blocks; undefined when there is none
  std::int64_t t = 0;
  std::int64_t G = 1;
  Geometry geometry;
};
struct StepAttendArgs {
  at::Tensor q;     // [B,1,Hq,Dk]
  at::Tensor k, v;  // [B,G,keys,Dk], [B,G,keys,Dv]: every key is seen
};

struct StepOps {
  std::function<void(LayerCache&, const Projected&)> remember;          // T >= 1 tokens, of a prefill or a step
  std::function<void(LayerCache&, const Compressed&)> remember_blocks;  // blocks [B,N,G,D] that have become complete
  // Eq 8 to 11 for one query: blocks [B,1,G,n] int32, ascending, tail padded with -1.
  std::function<at::Tensor(const StepSelectArgs&)> select;
  std::function<at::Tensor(const StepAttendArgs&)> attend;  // [B,1,Hq,Dv]; serves all three branches
};
[[nodiscard]] StepOps step_ops();

// The chosen blocks' tokens up to t, of a cache that ends with t: rows [B,G,S,D], blocks [B,1,G,n] -> [B,G,tokens,D].
[[nodiscard]] at::Tensor gather_blocks(const at::Tensor& rows, const at::Tensor& blocks, std::int64_t t,
                                       const Geometry& g);

}  // namespace nsa::decode
