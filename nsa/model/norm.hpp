// Root-mean-square norm over the last dimension: x / sqrt(mean(x^2) + 1e-6) * weight.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace nsa {

class RmsNormImpl : public torch::nn::Module {
 public:
  explicit RmsNormImpl(std::int64_t width);
  torch::Tensor forward(const torch::Tensor& x);
  void reset_parameters();  // ones

  torch::Tensor weight;  // [width]
};
TORCH_MODULE(RmsNorm);

}  // namespace nsa
