// AdamW with clipping and casts in one pass over memory, on our own kernels (nsa/kernels/update.hpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <variant>
#include <vector>

namespace nsa::cuda {

// A parameter and what its update needs.
struct UpdateTensors {
  at::Tensor parameter, gradient;    // of 16 bits; the gradient is changed where it is clipped
  at::Tensor weight, first, second;  // fp32: the parameter's copy and its moments
  at::Tensor step;                   // fp32 scalar: how many updates, this one counted
};

// Of the host, or a scalar on the device.
using Number = std::variant<double, at::Tensor>;

struct UpdateNumbers {
  Number rate;
  Number norm;  // of all gradients; scaled is what is above max_norm and finite
  double max_norm = 0, decay = 0, beta1 = 0, beta2 = 0, epsilon = 0;
  at::Tensor skip;  // fp32 scalar: where it is 1 nothing is changed; undefined: it is not
};

// "" where the kernels, or their emulation, serve these tensors, else what was asked and what is served: CUDA, bf16 or
// fp16 parameters and gradients of one type, dense, with fp32 copies.
[[nodiscard]] std::string update_refusal(const std::vector<UpdateTensors>& all);
// Of what it serves.
void update(const std::vector<UpdateTensors>& all, const UpdateNumbers& numbers);

// The L2 norm over all gradients, fp32 scalar on their device, as kernels::norm_of sums it; and why it is not served:
// CUDA, bf16 or fp16 of one type, dense.
[[nodiscard]] std::string norm_of_refusal(const std::vector<at::Tensor>& gradients);
[[nodiscard]] at::Tensor norm_of(const std::vector<at::Tensor>& gradients);

}  // namespace nsa::cuda
