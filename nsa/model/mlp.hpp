// The block's feed-forward part: dim -> 4*dim, SiLU, -> dim; no biases.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <string>

#include "nsa/model/runtime.hpp"

namespace nsa {

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(std::int64_t dim);
  torch::Tensor forward(const torch::Tensor& x);
  struct Routed {
    torch::Tensor y;
    bool joined;  // as one node
  };
  // forward() or joined(), as the flags and what the kernels serve say; Runtime::parts is told, as "mlp" and "silu".
  Routed routed(const torch::Tensor& x, const Runtime& runtime);
  // The same, to the bit, as one node of autograd: where our own kernels run and no flag is against it (refusal). It
  // saves the host ten operations and their nodes, and the gradient in front of the SiLU takes the place of that behind
  // it. Second derivatives are refused. `own_silu`: the SiLU and its derivative are taken in the products before them
  // (cuda/mlp.hpp), whose sums may be of another order than cuBLAS's.
  torch::Tensor joined(const torch::Tensor& x, bool own_silu = false);
  // Why joined() is not to be called: NSA_FUSED_MLP, NSA_USE_CUDA, NSA_FORCE_PARITY, the device, the types. "" where it
  // is.
  [[nodiscard]] std::string refusal(const torch::Tensor& x, const EffectiveFlags& flags) const;
  // Why not with `own_silu`: NSA_FUSED_SILU, or what the kernels do not serve. "" where it is.
  [[nodiscard]] std::string silu_refusal(const torch::Tensor& x, const EffectiveFlags& flags) const;
  void reset_parameters();

  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Mlp);

}  // namespace nsa
