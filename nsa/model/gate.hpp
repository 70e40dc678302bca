// The gate (Eq 5): how much of each branch a group's heads take, from the group's mean query before RoPE, so that the
// output does not depend on where the text starts. fc1: Dk -> max(1, Dk/2), SiLU, fc2: -> 3, divided by tau.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "nsa/config.hpp"
#include "nsa/flags.hpp"

namespace nsa {

class GateImpl : public torch::nn::Module {
 public:
  GateImpl(std::int64_t d_k, std::int64_t groups, GateActivation activation, double tau);
  // q [B,S,Hq,Dk] before RoPE -> [B,S,G,3] in fp32 (fp64 for fp64), in the order cmp, sel, win. A forced branch is
  // one-hot and a uniform gate 1/3 each, both constant; NSA_STOPGRAD_GATES detaches.
  torch::Tensor forward(const torch::Tensor& q, const EffectiveFlags& flags);
  // The same from the mean of its queries [B,S,G,Dk] in fp32, by our own kernels (cuda/project.hpp). No branch may be
  // forced and no gate uniform.
  torch::Tensor of_mean(const torch::Tensor& mean, const EffectiveFlags& flags);
  // fc1 weight and bias uniform in +-1/sqrt(Dk); fc2 weight Xavier-uniform with gain 0.1 (all-zero would leave every
  // gate at 1/3 and fc1 without a gradient), bias 0.
  void reset_parameters();

  torch::nn::Linear fc1{nullptr}, fc2{nullptr};

 private:
  void reset_fc2();
  std::int64_t groups_;
  GateActivation activation_;
  double tau_;
};
TORCH_MODULE(Gate);

}  // namespace nsa
