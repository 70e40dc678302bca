// Activation recomputation (gradient checkpointing): a part of the model keeps its input alone for the backward pass
// and computes everything between again in it. Costs one more forward pass of that part, saves all of its activations.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>

namespace nsa {

// forward(x), recomputed in the backward pass. `part` owns the parameters that `forward` uses; it lives until then.
//
// Loss and gradients are those without recomputation, bit for bit where the device repeats itself: both passes
// run with gradients on, hence by the same routes and kernels. Each gradient still arrives once. Hooks on
// parameters, anomaly mode, accumulation and retain_graph work as usual; x need not require a gradient. Without
// gradients it is `forward(x)`.
//
// Not served, and refused with Unsupported in the backward pass: create_graph (a second derivative), and grad() or
// backward() with a list of inputs, because the parameters' gradients would be added to .grad instead. `forward` must
// not draw random numbers: no generator is set back.
[[nodiscard]] at::Tensor recompute(const torch::nn::Module& part, const at::Tensor& x,
                                   std::function<at::Tensor(const at::Tensor&)> forward);

}  // namespace nsa
