#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <numbers>

#include "suites/training/cases.hpp"

namespace suites::training_cases {

namespace {

at::Tensor bits(const at::Tensor& t) { return t.detach().contiguous().flatten().view(at::kByte); }

}  // namespace

Weights copy_weights(nsa::LanguageModelImpl& model) {
  Weights weights;
  for (const auto& parameter : model.named_parameters()) {
    weights.emplace_back(parameter.key(), parameter.value().detach().clone());
  }
  return weights;
}

std::vector<std::string> changed_weights(const Weights& before, nsa::LanguageModelImpl& model) {
  const auto now = model.named_parameters();
  std::vector<std::string> changed;
  for (const auto& [name, old] : before) {
    const at::Tensor* value = now.find(name);
    if (value == nullptr || !at::equal(bits(old), bits(*value))) changed.push_back(name);
  }
  return changed;
}

std::string nonfinite_weight(nsa::LanguageModelImpl& model) {
  for (const auto& parameter : model.named_parameters()) {
    if (!at::isfinite(parameter.value().detach()).all().item<bool>()) return parameter.key();
  }
  return "";
}

double expected_learning_rate(const nsa::TrainConfig& config, std::int64_t step) {
  const auto t = static_cast<double>(step), warm_up = static_cast<double>(config.warmup_steps);
  if (t < warm_up) return config.lr * (t + 1) / warm_up;
  const double last = static_cast<double>(config.steps) - 1;
  const double progress = last > warm_up ? std::fmin((t - warm_up) / (last - warm_up), 1) : (t > warm_up ? 1 : 0);
  const double cosine = std::cos(std::numbers::pi * progress);
  return config.lr * (1 + cosine) / 2 + config.lr_min * (1 - cosine) / 2;
}

double expected_initial_loss(const nsa::ModelConfig& model) {
  return std::log(static_cast<double>(model.vocab)) + 1.0 / 6;
}

RandomTokens::RandomTokens(std::int64_t vocab, std::uint64_t seed)
    : vocab_(vocab), generator_(at::detail::createCPUGenerator(seed)) {}

at::Tensor RandomTokens::next(std::int64_t batch, std::int64_t length) {
  return at::randint(0, vocab_, {batch, length}, generator_, at::kLong);
}

TokenLoss evaluate(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  const std::int64_t S = tokens.size(1) - 1;
  const at::Tensor input = tokens.narrow(1, 0, S).to(model.head->weight.device());
  const at::Tensor target = tokens.narrow(1, 1, S).to(input.device());
  const at::Tensor log_p = at::log_softmax(model.forward(input).to(at::kFloat), -1);  // [B,S,V]
  const at::Tensor nll = log_p.gather(2, target.unsqueeze(2)).neg().to(at::kDouble);  // [B,S,1]
  return {nll.mean().item<double>(), nll.std().item<double>(), nll.numel()};
}

}  // namespace suites::training_cases
