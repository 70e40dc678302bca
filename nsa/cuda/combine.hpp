// The gated sum's tensors as its kernels take them.
#pragma once

#include <ATen/core/Tensor.h>

#include "nsa/kernels/combine.hpp"

namespace nsa::cuda {

// Contiguous, of the storage type or fp32. Differentiable.
[[nodiscard]] at::Tensor gates_for_kernels(const at::Tensor& gates, at::ScalarType storage);
// gates_for_kernels' gates [B,S,G,3], branches [B,S,Hq,Dv] aligned (rows.hpp) in the order cmp, sel, win. An undefined
// branch is left to the caller.
[[nodiscard]] kernels::Combine combine_parameters(const at::Tensor& gates, const at::Tensor& o_cmp,
                                                  const at::Tensor& o_sel, const at::Tensor& o_win);

}  // namespace nsa::cuda
