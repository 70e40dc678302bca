// The residual addition and the RMSNorm behind it as one function, forward and backward, on our own kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>

namespace nsa::cuda {

struct Normed {
  at::Tensor sum;  // x + delta; x where there is no delta
  at::Tensor y;    // sum / sqrt(mean(sum^2) + epsilon) * weight
};

// "" where the kernels, or their emulation, serve these tensors, else what was asked and what is served: CUDA, bf16 or
// fp16 for all of them, a width that is a multiple of 8 and at most 8192.
[[nodiscard]] std::string norm_refusal(const at::Tensor& x, const std::optional<at::Tensor>& delta,
                                       const at::Tensor& weight);
// x, delta [..., width], weight [width]. Both results are differentiable: the gradient that arrives at the sum is added
// in fp32 to that of the norm. Second derivatives are refused. Throws Unsupported with norm_refusal's reason.
[[nodiscard]] Normed norm(const at::Tensor& x, const std::optional<at::Tensor>& delta, const at::Tensor& weight,
                          double epsilon);

// Both passes without autograd; all tensors dense, beginning at multiples of 16 bytes.
struct NormedRows {
  Normed normed;
  at::Tensor rstd;  // [rows] fp32
};
[[nodiscard]] NormedRows norm_forward(const at::Tensor& x, const std::optional<at::Tensor>& delta,
                                      const at::Tensor& weight, double epsilon);
struct NormGradients {
  at::Tensor x;  // of delta as well
  at::Tensor weight;
};
struct NormGiven {
  at::Tensor dy;
  at::Tensor dsum;  // undefined: nothing arrives at the sum
  at::Tensor sum, weight, rstd;
};
[[nodiscard]] NormGradients norm_backward(const NormGiven& given, bool wants_x, bool wants_weight);

}  // namespace nsa::cuda
