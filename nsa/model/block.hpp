// One transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "nsa/model/attention.hpp"
#include "nsa/model/mlp.hpp"
#include "nsa/model/norm.hpp"

namespace nsa {

// The residual stream between two layers: x + added. Where an addition waits for the next norm, which adds and norms in
// one kernel, `added` is defined.
struct Residual {
  Residual(torch::Tensor whole) : x(std::move(whole)) {}  // NOLINT: a tensor is a stream
  Residual(torch::Tensor before, torch::Tensor last) : x(std::move(before)), added(std::move(last)) {}
  [[nodiscard]] torch::Tensor sum() const { return added.defined() ? x + added : x; }

  torch::Tensor x, added;
};

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(const ModelConfig& config, std::int64_t layer, std::shared_ptr<Runtime> runtime);
  // The last addition waits for the next norm where the MLP is one node (Mlp::joined) and nobody observes.
  Residual forward(const Residual& x, const torch::Tensor& rotations, const CuSeqlens& cu_seqlens);
  // The block round another way to attend: `attend` gets norm(x) and gives the attention's output (nsa/decode).
  Residual around(const Residual& x, const std::function<torch::Tensor(const torch::Tensor&)>& attend);
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
