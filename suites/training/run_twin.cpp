#include "suites/training/run_twin.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "nsa/model/make.hpp"

namespace suites::training_cases {

namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.999;

std::int64_t predicted_by(const std::vector<PlainBatch>& batches) {
  std::int64_t all = 0;
  for (const PlainBatch& batch : batches) all += predicted(batch);
  return all;
}

// Layers have the same number of tokens and groups.
GateFigures figures_of(const std::map<std::string, at::Tensor>& gates) {
  GateFigures figures;
  figures.entropy_min = std::log(3.0);
  const auto layers = static_cast<double>(gates.size());
  for (const auto& [name, value] : gates) {
    const at::Tensor wide = value.to(at::kDouble).cpu().reshape({-1, 3}), shares = wide / wide.sum(1, true),
                     entropy = -(shares * shares.clamp_min(1e-300).log()).sum(1), most = std::get<0>(shares.max(1));
    const double mean = entropy.mean().item<double>();
    figures.entropy_of_layer[name.substr(0, name.rfind('.'))] = mean;
    figures.entropy_mean += mean / layers;
    figures.entropy_min = std::min(figures.entropy_min, entropy.min().item<double>());
    figures.largest = std::max(figures.largest, most.max().item<double>());
    figures.collapsed += most.gt(0.9).to(at::kDouble).mean().item<double>() / layers;
    for (std::size_t branch = 0; branch < figures.shares.size(); ++branch)
      figures.shares[branch] += shares.select(1, static_cast<std::int64_t>(branch)).mean().item<double>() / layers;
  }
  return figures;
}

}  // namespace

LossOf mean_of(const std::vector<double>& losses, const std::vector<PlainBatch>& batches) {
  LossOf of{0, predicted_by(batches)};
  for (std::size_t i = 0; i < batches.size(); ++i)
    of.loss += losses[i] * static_cast<double>(predicted(batches[i])) / static_cast<double>(of.predictions);
  return of;
}

RunTwin::RunTwin(const nsa::Config& config, at::Device device)
    : config_(config.train),
      device_(device),
      model_(nsa::make_model(config.model, nsa::resolve(nsa::read_environment()),
                             {.precision = config.train.precision, .device = device, .seed = config.train.seed})) {
  for (const auto& parameter : model_->named_parameters()) {
    const at::Tensor zero = at::zeros_like(parameter.value().detach(), at::kDouble);
    moments_[parameter.key()] = {zero, zero.clone(), 0};
  }
}

RunTwin::Step RunTwin::step(const SeenStep& seen) {
  take(seen.before);
  model_->train();
  std::map<std::string, at::Tensor> gates;
  model_->runtime->watch_gates = [&](std::string_view layer, const at::Tensor& value) {
    gates[std::string(layer)] = value.detach();
  };
  Step step{.of = {0, predicted_by(seen.batches)}, .grad_norm = 0, .by_batch = {}, .gates = {}};
  for (const PlainBatch& batch : seen.batches) {
    const nsa::train::Batch given = unplain(batch);
    const double share = static_cast<double>(predicted(batch)) / static_cast<double>(step.of.predictions);
    const at::Tensor loss = model_->loss(given.tokens.to(device_), given.cu_seqlens);
    (loss * share).backward();
    step.by_batch.push_back(loss.item<double>());
    step.of.loss += step.by_batch.back() * share;
  }
  model_->runtime->watch_gates = {};
  step.gates = figures_of(gates);
  double squares = 0;
  for (const at::Tensor& parameter : model_->parameters()) {
    if (parameter.grad().defined()) squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  step.grad_norm = std::sqrt(squares);
  update_moments(step.grad_norm > config_.grad_clip ? config_.grad_clip / step.grad_norm : 1);
  return step;
}

std::vector<double> RunTwin::losses(const Weights& weights, const std::vector<PlainBatch>& batches) {
  take(weights);
  const at::NoGradGuard no_grad;
  model_->eval();
  std::vector<double> all;
  for (const PlainBatch& batch : batches) {
    const nsa::train::Batch given = unplain(batch);
    all.push_back(model_->loss(given.tokens.to(device_), given.cu_seqlens).item<double>());
  }
  return all;
}

LossOf RunTwin::loss_of_documents(const Weights& weights, const std::vector<PlainBatch>& batches) {
  take(weights);
  const at::NoGradGuard no_grad;
  model_->eval();
  LossOf of;
  for (const PlainBatch& batch : batches) {
    const at::Tensor tokens = unplain(batch).tokens.to(device_);  // [1, S+1]
    for (std::size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
      const std::int64_t length = batch.cu_seqlens[i + 1] - batch.cu_seqlens[i];
      if (length < 2) continue;
      const at::Tensor document = tokens.narrow(1, batch.cu_seqlens[i], length);
      const at::Tensor log_p = at::log_softmax(model_->forward(document.narrow(1, 0, length - 1)).to(at::kDouble), -1);
      of.loss -= log_p.gather(2, document.narrow(1, 1, length - 1).unsqueeze(2)).sum().item<double>();
      of.predictions += length - 1;
    }
  }
  of.loss /= static_cast<double>(of.predictions);  // NaN where nothing is predicted: equal to nothing
  return of;
}

void RunTwin::take(const Weights& weights) {
  const at::NoGradGuard no_grad;
  auto own = model_->named_parameters();
  for (const auto& [name, value] : weights) own[name].copy_(value);
  for (const auto& parameter : own) parameter.value().mutable_grad().reset();
}

void RunTwin::update_moments(double factor) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : model_->named_parameters()) {
    const at::Tensor gradient = parameter.value().grad();
    if (!gradient.defined()) continue;  // AdamW leaves it alone
    const at::Tensor wide = gradient.to(at::kDouble) * factor;
    Moments& moments = moments_.at(parameter.key());
    moments.exp_avg.mul_(kBeta1).add_(wide, 1 - kBeta1);
    moments.exp_avg_sq.mul_(kBeta2).addcmul_(wide, wide, 1 - kBeta2);
    ++moments.updates;
  }
}

}  // namespace suites::training_cases
