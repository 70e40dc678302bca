// What is done with gradients between backward and the update: their global norm, the search for the first that is not
// finite, and clipping. Parameters without a gradient do not take part.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace nsa::train {

// L2 norm over all gradients, in fp32 (fp64 for fp64), a scalar on their device: no synchronisation. 0 without any.
[[nodiscard]] at::Tensor global_norm(const torch::nn::Module& module);
[[nodiscard]] at::Tensor global_norm(const std::vector<at::Tensor>& gradients);
// The first parameter, in the order of registration, whose gradient has an element that is not
// finite; "" when none has.
[[nodiscard]] std::string first_nonfinite_gradient(const torch::nn::Module& module);
// Scales all gradients by max_norm / norm when norm is above max_norm.
void clip_to_norm(const torch::nn::Module& module, double norm, double max_norm);
// The same bits without a word from the host: `norm` as global_norm gives it. Where it is not finite, no gradient is
// changed, so that the culprit can still be found.
void clip_to_norm(const torch::nn::Module& module, const at::Tensor& norm, double max_norm);
// The same of these gradients.
void clip_to_norm(const std::vector<at::Tensor>& gradients, double norm, double max_norm);
void clip_to_norm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm);

}  // namespace nsa::train
