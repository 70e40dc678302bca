// Backend `sdpa`: the functions through ATen's scaled_dot_product_attention; any device, fp32, bf16 (fp64 too).
#pragma once

#include <memory>

#include "nsa/ops.hpp"

namespace nsa::sdpa {

// How attend_selected reaches the chosen blocks.
enum class Selection {
  packed,       // gathers the chosen blocks into a workspace that is reused: only without gradients
  packed_safe,  // gathers into fresh tensors, so that autograd may keep them
  masked        // a mask per group over the unexpanded keys, a chunk of queries at a time
};
// Elements of the mask of one group and chunk: [S,S] up to 16,384 tokens. It bounds memory, and it is far from where
// ATen's kernel fails (kLargestMask in rows.hpp).
inline constexpr std::int64_t kMaskElements = std::int64_t{1} << 28;

[[nodiscard]] Compressed compress(const CompressArgs& args);
[[nodiscard]] Attended attend_compressed(const AttendCompressedArgs& args);
[[nodiscard]] at::Tensor select(const SelectArgs& args);
// `packed` with gradients needed throws ContractError: a reused workspace would be written under autograd.
[[nodiscard]] Attended attend_selected(const AttendSelectedArgs& args, Selection how,
                                       std::int64_t mask_elements = kMaskElements);
[[nodiscard]] Attended attend_window(const AttendWindowArgs& args);
[[nodiscard]] at::Tensor combine(const CombineArgs& args);

[[nodiscard]] Ops ops(Selection how = Selection::packed_safe);

}  // namespace nsa::sdpa
