// The byte-level language model around NSA: embedding, blocks, final RMSNorm, untied head; cross-entropy in fp32.
// LibTorch modules in LibTorch's own style: Impl + holder, reset_parameters, forward.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>

#include "nsa/config.hpp"
#include "nsa/model/block.hpp"
#include "nsa/model/runtime.hpp"

namespace nsa {

class LanguageModelImpl : public torch::nn::Module {
 public:
  LanguageModelImpl(const ModelConfig& config, Runtime runtime);
  // tokens [B,S] int64 -> logits [B,S,vocab] in the parameters' dtype. `cu_seqlens`: packed batch, B = 1. Throws
  // ContractError for anything else (token values are looked at on the CPU only).
  torch::Tensor forward(const torch::Tensor& tokens, const CuSeqlens& cu_seqlens = {});
  // Mean cross-entropy in fp32 (fp64 for fp64): tokens [B,S+1] -> scalar over B*S predictions, each of the next token;
  // `cu_seqlens` describes the first S.
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
