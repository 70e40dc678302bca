// The learned weights of phi = mlp (Eq 7), one set for K and one for V, shared by the groups. phi = avg has none.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "nsa/ops.hpp"

namespace nsa {

class CompressorImpl : public torch::nn::Module {
 public:
  CompressorImpl(std::int64_t l, std::int64_t width);  // blocks of l tokens, D = width
  [[nodiscard]] PhiWeights weights() const;
  void reset_parameters();  // position normal with std 0.02; fc1, fc2 uniform in +-1/sqrt(fan_in)

  torch::Tensor position;  // [l, D]
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Compressor);

}  // namespace nsa
