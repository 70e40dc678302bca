// The byte-level language model around NSA: embedding, blocks, final RMSNorm, untied head; cross-entropy in fp32.
// LibTorch modules in LibTorch's own style: Impl + holder, reset_parameters, forward.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>

#include "nsa/config.hpp"
#include "nsa/model/block.hpp"
#include "nsa/model/runtime.hpp"

namespace nsa {

// tokens: Long [B,S], not empty, values below `vocab` (looked at on the CPU only). Throws ContractError.
void check_tokens(const torch::Tensor& tokens, std::int64_t vocab);

class LanguageModelImpl : public torch::nn::Module {
 public:
  // Throws ConfigInvalid with every error of the configuration's values.
  LanguageModelImpl(const ModelConfig& config, Runtime runtime);
  // tokens [B,S] int64 -> logits [B,S,vocab] in the parameters' dtype. `cu_seqlens`: packed batch, B = 1. Throws
  // ContractError for anything else (token values are looked at on the CPU only), and where `runtime` has no ops.
  torch::Tensor forward(const torch::Tensor& tokens, const CuSeqlens& cu_seqlens = {});
  // What every pass shares: embedding, `layer` for each layer in turn (the stream, [B,S,dim]), final norm, head.
  using Layer = std::function<Residual(BlockImpl& block, std::int64_t index, const Residual& x)>;
  torch::Tensor through(const torch::Tensor& tokens, const Layer& layer);
  // Mean cross-entropy in fp32 (fp64 for fp64): tokens [B,S+1] -> scalar over B*S predictions, each of the next token.
  // `cu_seqlens` describes all S+1 tokens: the first token of a document is not predicted from the document before it
  // and does not count. Throws ContractError where no prediction is left.
  torch::Tensor loss(const torch::Tensor& tokens, const CuSeqlens& cu_seqlens = {});
  void reset_parameters();  // the laws of nsa/README.md, from torch's generator

  ModelConfig config;
  std::shared_ptr<Runtime> runtime;  // shared with the layers; may be changed between passes
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList layers{nullptr};  // Block
  RmsNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(LanguageModel);

}  // namespace nsa
