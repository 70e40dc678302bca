// The lookup of tokens in the embedding, whose gradient may be a product.
#pragma once

#include <torch/nn/modules/embedding.h>

#include "nsa/model/runtime.hpp"

namespace nsa {

// Row `token` of the embedding's weight for every token of [B,S]: [B,S,dim].
//
// The weight's gradient is one product with the tokens as rows of a one and zeros, where our own kernels run, the
// vocabulary is small and no flag is against it (NSA_FUSED_EMBEDDING, NSA_USE_CUDA, NSA_FORCE_PARITY): a few launches
// in place of the sorting of all tokens in ATen's derivative, and a sum in one order. A NaN that arrives at a token
// then shows in that column of every token's gradient. Second derivatives are refused. What ran goes to Runtime::parts
// as "embedding".
[[nodiscard]] torch::Tensor embed(torch::nn::Embedding& embedding, const torch::Tensor& tokens, const Runtime& runtime);

}  // namespace nsa
