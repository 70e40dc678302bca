// The MLP's SiLU in the products around it, on our own kernels (kernels/mlp.hpp): without autograd, which is the MLP's
// (model/mlp.hpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace nsa::cuda {

// "" where the kernels, or their emulation, serve the MLP of x [..., width] with fc1 [wide, width] and fc2 [width,
// wide], else what was asked and what is served: Hopper, bf16 or fp16 for all of them, widths that are multiples of 64,
// rows enough to fill half of the GPU.
[[nodiscard]] std::string silu_product_refusal(const at::Tensor& x, const at::Tensor& fc1, const at::Tensor& fc2);

struct Activated {
  at::Tensor hidden, active;  // x fc1^T, and its SiLU: [rows, wide]
};
// x [rows, width].
[[nodiscard]] Activated silu_product(const at::Tensor& x, const at::Tensor& fc1);
// dy [rows, width], hidden [rows, wide]: the gradient of hidden, (dy fc2) silu'(hidden).
[[nodiscard]] at::Tensor silu_product_backward(const at::Tensor& dy, const at::Tensor& fc2, const at::Tensor& hidden);

}  // namespace nsa::cuda
