// The mean over blocks without autograd, keys and values together: one launch each way.
#pragma once

#include <ATen/core/Tensor.h>

#include "nsa/cuda/packing.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

// The blocks of S tokens; N of them.
struct Blocks {
  Geometry geometry;
  Packing packing;
  std::int64_t S = 0, N = 0;
};
[[nodiscard]] Blocks blocks_of(const at::Tensor& tokens, const Geometry& g, const CuSeqlens& cu_seqlens);

// k, v [B,S,G,D] aligned (rows.hpp). `into`: memory for the results, dense but for its batches; undefined: fresh.
[[nodiscard]] Compressed pool_forward(const at::Tensor& k, const at::Tensor& v, const Blocks& blocks,
                                      const Compressed& into = {});
// Of the gradients of pool_forward's results, aligned, or undefined ones, whose results are undefined too.
[[nodiscard]] Compressed pool_backward(const at::Tensor& dk_cmp, const at::Tensor& dv_cmp, const Blocks& blocks);

}  // namespace nsa::cuda
