// Root-mean-square norm over the last dimension: x / sqrt(mean(x^2) + 1e-6) * weight; alone, and behind the addition to
// the residual stream.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "nsa/model/runtime.hpp"

namespace nsa {

struct Normed {
  torch::Tensor stream;  // the residual stream: x + delta, or x
  torch::Tensor y;       // the norm of that
};

class RmsNormImpl : public torch::nn::Module {
 public:
  explicit RmsNormImpl(std::int64_t width);
  torch::Tensor forward(const torch::Tensor& x);
  // The norm of x + delta, of x where delta is undefined. On our own kernels, one each way, where they serve it
  // (cuda/norm.hpp) and no flag is against it (NSA_FUSED_NORM, NSA_USE_CUDA, NSA_FORCE_PARITY); else as forward(x +
  // delta), to the bit. What ran goes to Runtime::parts as "norm".
  //
  // Who goes on from `stream` instead of x has the residual's gradient added in the norm's kernel.
  Normed after(const torch::Tensor& x, const torch::Tensor& delta, const Runtime& runtime);
  void reset_parameters();  // ones

  torch::Tensor weight;  // [width]
};
TORCH_MODULE(RmsNorm);

}  // namespace nsa
