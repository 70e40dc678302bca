// One transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <string>

#include "nsa/model/attention.hpp"
#include "nsa/model/norm.hpp"

namespace nsa {

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(std::int64_t dim);  // dim -> 4*dim, SiLU, -> dim; no biases
  torch::Tensor forward(const torch::Tensor& x);
  void reset_parameters();

  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Mlp);

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(const ModelConfig& config, std::int64_t layer, std::shared_ptr<Runtime> runtime);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& rotations, const CuSeqlens& cu_seqlens);
  // The block round another way to attend: `attend` gets norm(x) and gives the attention's output (nsa/decode).
  torch::Tensor around(const torch::Tensor& x, const std::function<torch::Tensor(const torch::Tensor&)>& attend);
  void reset_parameters();

  RmsNorm norm_attention{nullptr};
  NsaAttention attention{nullptr};
  RmsNorm norm_mlp{nullptr};
  Mlp mlp{nullptr};

 private:
  std::string name_;  // "layers.3"
  std::shared_ptr<Runtime> runtime_;
};
TORCH_MODULE(Block);

}  // namespace nsa
