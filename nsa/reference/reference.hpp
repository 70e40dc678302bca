// The oracle: Native Sparse Attention slow and obvious, one function a stage, in any floating dtype (fp64 to judge
// others). It returns its stages. It shares no mask, no overlap weight and no top-n code with any backend.
#pragma once

#include "nsa/ops.hpp"

namespace nsa::reference {

// p_cmp of every query and head over the compressed blocks, exactly 0 where a block is not visible. [B,Hq,S,N_c]
[[nodiscard]] at::Tensor compressed_probabilities(const at::Tensor& q, const at::Tensor& k_cmp, const Geometry& g,
                                                  const CuSeqlens& cu_seqlens = {});
// Eq 9: overlap weights from the geometry. [N_c, N_sel], in units of d tokens: 1,2,2,2,1 for 32/16/64.
[[nodiscard]] at::Tensor overlap_weights(const Geometry& g, std::int64_t N_c, std::int64_t N_sel);
// Eq 9 and 10: score of each selection block, summed over the heads of the group. [B,S,G,N_sel]; one document.
[[nodiscard]] at::Tensor importance(const at::Tensor& p_cmp, const Geometry& g, std::int64_t G, std::int64_t S);
// Eq 11: the chosen blocks. [B,S,G,n] int32
[[nodiscard]] at::Tensor choose(const at::Tensor& importance, const Geometry& g);

[[nodiscard]] Compressed compress(const CompressArgs& args);
[[nodiscard]] Attended attend_compressed(const AttendCompressedArgs& args);
[[nodiscard]] at::Tensor select(const SelectArgs& args);
[[nodiscard]] Attended attend_selected(const AttendSelectedArgs& args);
[[nodiscard]] Attended attend_window(const AttendWindowArgs& args);
[[nodiscard]] at::Tensor combine(const CombineArgs& args);

[[nodiscard]] Ops ops();

// The stages of one attention call, for whoever wants to see where two implementations part.
struct Stages {
  Compressed compressed;
  at::Tensor p_cmp, importance, blocks;
  Attended cmp, sel, win;
  at::Tensor o;
};
struct StagesArgs {
  at::Tensor q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win;  // token-level K and V of each branch
  at::Tensor gates;                                        // [B,S,G,3]
  Geometry geometry;
};
[[nodiscard]] Stages stages(const StagesArgs& args);

}  // namespace nsa::reference
