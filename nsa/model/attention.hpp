// One layer of Native Sparse Attention: projections, RoPE, gate, the six functions of the ops table, output projection.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>

#include "nsa/config.hpp"
#include "nsa/model/compressor.hpp"
#include "nsa/model/gate.hpp"
#include "nsa/model/runtime.hpp"

namespace nsa {

class NsaAttentionImpl : public torch::nn::Module {
 public:
  NsaAttentionImpl(const ModelConfig& config, std::int64_t layer, std::shared_ptr<Runtime> runtime);
  // x [B,S,dim], rotations of rope.hpp -> [B,S,dim]. With a forced branch the other two are not computed.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& rotations, const CuSeqlens& cu_seqlens);
  void reset_parameters();

  torch::nn::Linear q{nullptr};
  torch::nn::Linear k_cmp{nullptr}, v_cmp{nullptr};  // every branch has keys and values of its own (paper 3.3.3)
  torch::nn::Linear k_sel{nullptr}, v_sel{nullptr};
  torch::nn::Linear k_win{nullptr}, v_win{nullptr};
  Compressor phi_k{nullptr}, phi_v{nullptr};  // phi = mlp only
  Gate gate{nullptr};
  torch::nn::Linear o{nullptr};

 private:
  [[nodiscard]] Call call(const torch::Tensor& rotated_q, bool packed, bool grad) const;
  void observe(std::string_view stage, const torch::Tensor& value) const;

  ModelConfig config_;
  std::string name_;  // "layers.3.attention"
  std::shared_ptr<Runtime> runtime_;
};
TORCH_MODULE(NsaAttention);

}  // namespace nsa
