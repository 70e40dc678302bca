#include "nsa/model/lm.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/functional/loss.h>

#include "nsa/model/checked.hpp"
#include "nsa/model/embedding.hpp"
#include "nsa/model/recompute.hpp"
#include "nsa/model/rope.hpp"
#include "nsa/nvtx.hpp"

namespace nsa {

void check_tokens(const torch::Tensor& tokens, std::int64_t vocab) {
  const bool fits =
      tokens.defined() && tokens.dim() == 2 && tokens.scalar_type() == torch::kInt64 && tokens.numel() > 0;
  if (!fits)
    throw ContractError(tokens.defined()
                            ? fmt::format("tokens: is {} [{}]; allowed: Long [B,S], not empty",
                                          c10::toString(tokens.scalar_type()), fmt::join(tokens.sizes(), ", "))
                            : std::string("tokens: is undefined; allowed: Long [B,S], not empty"));
  if (!tokens.device().is_cpu()) return;
  const auto low = tokens.min().item<std::int64_t>(), high = tokens.max().item<std::int64_t>();
  if (low < 0 || high >= vocab)
    throw ContractError(fmt::format("tokens: values from {} to {}; allowed: 0 to {}", low, high, vocab - 1));
}

namespace {

constexpr std::int64_t kIgnored = -100;  // cross_entropy leaves such targets out of its mean

void check_packed(const torch::Tensor& tokens, const torch::Tensor& cu_seqlens) {
  check_cu_seqlens(cu_seqlens, tokens.size(1));
  if (tokens.size(0) != 1)
    throw ContractError(fmt::format("tokens: B = {} with cu_seqlens; allowed: 1", tokens.size(0)));
}

// The tokens to predict, [S] of a packed batch of S+1: those that begin a document (they have nothing before them to be
// predicted from) are kIgnored.
torch::Tensor packed_targets(const torch::Tensor& tokens, const torch::Tensor& cu_seqlens) {
  const std::int64_t S = tokens.size(1) - 1;
  std::vector<std::int64_t> begins;
  for (const auto& [begin, end] : documents(cu_seqlens, S + 1))
    if (begin > 0 && begin < end) begins.push_back(begin - 1);
  if (static_cast<std::int64_t>(begins.size()) == S)
    throw ContractError(
        fmt::format("cu_seqlens: {} documents of one token; allowed: at least one token that follows "
                    "another in its document, else nothing is predicted",
                    S + 1));
  auto targets = tokens[0].narrow(0, 1, S).clone();
  if (!begins.empty())
    targets.index_fill_(0, torch::tensor(begins, torch::kLong).to(targets.device(), /*non_blocking=*/true), kIgnored);
  return targets;
}

}  // namespace

LanguageModelImpl::LanguageModelImpl(const ModelConfig& model_config, Runtime model_runtime)
    : config(checked(model_config)), runtime(std::make_shared<Runtime>(std::move(model_runtime))) {
  embedding = register_module("embedding", torch::nn::Embedding(config.vocab, config.dim));
  layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.n_layers; ++i) layers->push_back(Block(config, i, runtime));
  norm = register_module("norm", RmsNorm(config.dim));
  head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(config.dim, config.vocab).bias(false)));
}

torch::Tensor LanguageModelImpl::forward(const torch::Tensor& tokens, const CuSeqlens& cu_seqlens) {
  check_tokens(tokens, config.vocab);
  const std::int64_t S = tokens.size(1);
  if (cu_seqlens) check_packed(tokens, *cu_seqlens);
  const NvtxRange whole(runtime->flags.nvtx, "forward");
  const auto rotations =
      rope_rotations(S, config.d_k, config.rope_base, runtime->flags.rope_scale, cu_seqlens, head->weight.options());
  return through(tokens, [&](BlockImpl& block, std::int64_t, const Residual& x) -> Residual {
    if (!runtime->recompute) return block.forward(x, rotations, cu_seqlens);
    return recompute(block, x.sum(), [&block, rotations, cu_seqlens](const torch::Tensor& input) {
      return block.forward(input, rotations, cu_seqlens).sum();
    });
  });
}

torch::Tensor LanguageModelImpl::through(const torch::Tensor& tokens, const Layer& layer) {
  const auto observe = [&](std::string_view stage, const torch::Tensor& value) {
    if (runtime->observe) runtime->observe(stage, value);
  };
  Residual x = embed(embedding, tokens, *runtime);
  observe("embedding", x.x);
  for (std::size_t i = 0; i < layers->size(); ++i)
    x = layer(*layers[i]->as<BlockImpl>(), static_cast<std::int64_t>(i), x);
  const auto normed = norm->after(x.x, x.added, *runtime).y;
  observe("norm", normed);
  auto logits = head(normed);
  observe("logits", logits);
  return logits;
}

torch::Tensor LanguageModelImpl::loss(const torch::Tensor& tokens, const CuSeqlens& cu_seqlens) {
  check_tokens(tokens, config.vocab);
  const std::int64_t S = tokens.size(1) - 1;
  if (S < 1) throw ContractError("tokens: one token; allowed: at least two, of which the last is only predicted");
  if (cu_seqlens) check_packed(tokens, *cu_seqlens);
  const auto targets = cu_seqlens ? packed_targets(tokens, *cu_seqlens) : tokens.narrow(1, 1, S).flatten();
  const auto logits = forward(tokens.narrow(1, 0, S), cu_seqlens ? CuSeqlens(cu_seqlens->clamp_max(S)) : CuSeqlens());
  const NvtxRange range(runtime->flags.nvtx, "loss");
  const auto wide = logits.flatten(0, 1).to(accumulation_type(logits.scalar_type()));
  const auto options = torch::nn::functional::CrossEntropyFuncOptions().ignore_index(kIgnored);
  auto value = torch::nn::functional::cross_entropy(wide, targets, options);
  if (runtime->observe) runtime->observe("loss", value);
  return value;
}

void LanguageModelImpl::reset_parameters() {
  embedding->reset_parameters();
  for (const auto& layer : *layers) layer->as<BlockImpl>()->reset_parameters();
  norm->reset_parameters();
  head->reset_parameters();
}

}  // namespace nsa
