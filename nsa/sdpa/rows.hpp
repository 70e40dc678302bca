// Note [Heads as rows]
// ATen's fused attention kernels take a mask or grouped heads, not both: given both, or on the CPU, they first repeat
// K and V for every query head. So the h query heads of a group become h rows of one head that faces the group's own
// K and V: q [B,S,Hq,D] -> [B,G,S*h,D], row t*h + j. K and V stay [B,G,keys,D], as views, and so do their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "nsa/ops.hpp"

namespace nsa::sdpa {

[[nodiscard]] at::Tensor heads_to_rows(const at::Tensor& q, std::int64_t G);   // [B,S,Hq,D] -> [B,G,S*h,D]
[[nodiscard]] at::Tensor rows_to_heads(const at::Tensor& o, std::int64_t S);   // [B,G,S*h,D] -> [B,S,Hq,D]
[[nodiscard]] at::Tensor repeat_rows(const at::Tensor& mask, std::int64_t h);  // [S,K] -> [S*h,K]

// 0 .. count-1 + first, int64, on the device of `like`.
[[nodiscard]] at::Tensor positions(std::int64_t first, std::int64_t count, const at::Tensor& like);

// Calls `one(begin, length)` for every document that is not empty and lays the outputs [B,length,...] end to end.
[[nodiscard]] at::Tensor per_document(const CuSeqlens& cu_seqlens, std::int64_t S,
                                      const std::function<at::Tensor(std::int64_t begin, std::int64_t length)>& one);

}  // namespace nsa::sdpa
