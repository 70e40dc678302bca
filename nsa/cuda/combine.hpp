// The gated sum's tensors as its kernels take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "nsa/kernels/combine.hpp"

namespace nsa::cuda {

// Contiguous, of the storage type or fp32. Differentiable.
[[nodiscard]] at::Tensor gates_for_kernels(const at::Tensor& gates, at::ScalarType storage);
// gates_for_kernels' gates [B,S,G,3], branches [B,S,Hq,Dv] aligned (rows.hpp) in the order cmp, sel, win. An undefined
// branch is left to the caller.
[[nodiscard]] kernels::Combine combine_parameters(const at::Tensor& gates, const at::Tensor& o_cmp,
                                                  const at::Tensor& o_sel, const at::Tensor& o_win);

// Both passes without autograd, of the same tensors; dout aligned. Wanted, and given: of gates, o_cmp, o_sel, o_win.
inline constexpr std::size_t kCombineInputs = 4;
using CombineTensors = std::array<at::Tensor, kCombineInputs>;
[[nodiscard]] at::Tensor combine_forward(const CombineTensors& given);
[[nodiscard]] CombineTensors combine_backward(const CombineTensors& given, const at::Tensor& dout,
                                              const std::array<bool, kCombineInputs>& wanted);

}  // namespace nsa::cuda
