// One causal call of ATen's FlashAttention-2, shared by the two branches.
#pragma once

#include <vector>

#include "nsa/ops.hpp"
#include "nsa/route.hpp"

namespace nsa::flash {

// Throws Unsupported with flash_refusal's reason and the backend to use instead.
void require(const Call& call, Op op);

// q [B,S,Hq,D], k and v [B,S,G,D]: causal, at most `w` keys a query (no bound without it). Differentiable.
[[nodiscard]] Attended causal_dense(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    std::optional<std::int64_t> w);
// As causal_dense within documents of `lengths` tokens, none of them 0, laid end to end over B and S.
[[nodiscard]] Attended causal_varlen(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const std::vector<std::int64_t>& lengths, std::optional<std::int64_t> w);

}  // namespace nsa::flash
