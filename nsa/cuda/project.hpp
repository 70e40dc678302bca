// From a layer's input to what its attention is given: one product with all projections, RoPE on q and every k where
// the product wrote them, and the gate. Results are slices of the product's rows: strided, and nobody may write to
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string>

#include "nsa/route.hpp"

namespace nsa::cuda {

struct ProjectShape {
  std::int64_t Hq = 1, G = 1, Dk = 64, Dv = 64;
};
inline constexpr std::size_t kProjections = 7;  // q, k_cmp, k_sel, k_win, v_cmp, v_sel, v_win: the order everywhere
using ProjectTensors = std::array<at::Tensor, kProjections>;

struct Projection {
  ProjectTensors heads;  // [B,S,Hq,Dk], [B,S,G,Dk], [B,S,G,Dv]; q and keys turned
  at::Tensor mean;       // [B,S,G,Dk] fp32: q over the heads of a group, before it turns
};

// Both passes without autograd.
// x [B,S,dim], weight [width,dim]: the projections' one below the other, rotations [S,Dk/2] complex64, contiguous.
[[nodiscard]] Projection project_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rotations,
                                         const ProjectShape& shape);
// Of the gradients of project_forward's results, aligned (rows.hpp) or undefined, that of the product: [B,S,width].
[[nodiscard]] at::Tensor project_backward(const Projection& gradients, const at::Tensor& x, const at::Tensor& rotations,
                                          const ProjectShape& shape);

struct GateArgs {
  at::Tensor mean;            // [B,S,G,Dk] fp32
  at::Tensor w1, b1, w2, b2;  // [Dk/2,Dk], [Dk/2], [3,Dk/2], [3]: bf16 or fp16
  double tau = 1;
  GateActivation activation = GateActivation::softmax;
};
[[nodiscard]] at::Tensor gate_forward(const GateArgs& args);  // [B,S,G,3] fp32
struct GateGradients {
  at::Tensor mean, w1, b1, w2, b2;  // the weights' all or none
};
[[nodiscard]] GateGradients gate_backward(const GateArgs& args, const at::Tensor& gates, const at::Tensor& dgates,
                                          bool want_mean, bool want_weights);

// project_refusal (route.hpp) of a live layer and, for what no Call says, of the type of its gate's weights; "" where
// the kernels, or their emulation, serve it.
[[nodiscard]] std::string project_refusal(const EffectiveFlags& flags, const Call& call, const at::Tensor& x,
                                          const at::Tensor& gate_weight);
// The same as the functions above, differentiable.
[[nodiscard]] Projection project(const at::Tensor& x, const ProjectTensors& weights, const at::Tensor& rotations,
                                 const ProjectShape& shape);
[[nodiscard]] at::Tensor gate(const GateArgs& args);

}  // namespace nsa::cuda
