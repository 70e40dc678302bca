// One layer of Native Sparse Attention: projections, RoPE, gate, `compress` and `attend` of the ops table, output
// projection. forward = finish(attend(compress(project))); a prefill keeps what lies between, a decoding step puts
// attention over its caches in the place of `attend` (nsa/decode).
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

// What the branches are computed from. Keys and values that only branches need which are not computed (another one is
// forced) are undefined.
struct Projected {
  at::Tensor gates;         // [B,S,G,3]
  at::Tensor q;             // [B,S,Hq,Dk], rotated, as all keys are
  at::Tensor k_cmp, v_cmp;  // [B,S,G,Dk], [B,S,G,Dv]: before compression
  at::Tensor k_sel, v_sel;
  at::Tensor k_win, v_win;
  bool grad = false;  // gradients are on and something requires one
};

class NsaAttentionImpl : public torch::nn::Module {
 public:
  NsaAttentionImpl(const ModelConfig& config, std::int64_t layer, std::shared_ptr<Runtime> runtime);
  // x [B,S,dim], rotations of rope.hpp -> [B,S,dim]. With a forced branch the other two are not computed.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& rotations, const CuSeqlens& cu_seqlens);

  // The parts of forward. What is given to attention is made in one, by our own kernels, where nothing is against it
  // (project_refusal in cuda/project.hpp), else by ATen's functions one by one. Runtime::parts is told, as "project".
  Projected project(const torch::Tensor& x, const torch::Tensor& rotations);
  [[nodiscard]] Ops ops(const Projected& projected, bool packed) const;  // as routed for a pass over these
  // The blocks of one or several tokens' keys and values; of undefined ones (another branch is forced) undefined ones.
  Compressed compress(const Ops& ops, const at::Tensor& k, const at::Tensor& v, const CuSeqlens& cu_seqlens) const;
  // What `attend` of the table is given.
  [[nodiscard]] AttendArgs attend_args(const Projected& projected, const Compressed& blocks,
                                       const CuSeqlens& cu_seqlens) const;
  torch::Tensor finish(const torch::Tensor& attended);  // [B,S,Hq,Dv] -> [B,S,dim]

  [[nodiscard]] bool computes(ForcedBranch branch) const;  // it, or every branch
  void observe(std::string_view stage, const torch::Tensor& value) const;
  void reset_parameters();

  torch::nn::Linear q{nullptr};
  torch::nn::Linear k_cmp{nullptr}, v_cmp{nullptr};  // every branch has keys and values of its own (paper 3.3.3)
  torch::nn::Linear k_sel{nullptr}, v_sel{nullptr};
  torch::nn::Linear k_win{nullptr}, v_win{nullptr};
  Compressor phi_k{nullptr}, phi_v{nullptr};  // phi = mlp only
  Gate gate{nullptr};
  torch::nn::Linear o{nullptr};

 private:
  Projected project_in_one(const torch::Tensor& x, const torch::Tensor& rotations);
  Projected project_in_parts(const torch::Tensor& x, const torch::Tensor& rotations);
  void observe_queries(const Projected& p) const;

  ModelConfig config_;
  std::string name_;  // "layers.3.attention"
  std::shared_ptr<Runtime> runtime_;
};
TORCH_MODULE(NsaAttention);

}  // namespace nsa
