#include "suites/distributed/rank_watch.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "nsa/train/hash.hpp"
#include "suites/probes/op_tap.hpp"

namespace suites::distributed_ranks {

namespace {

// The rows that aten::embedding is asked for: what really goes through the model. A plain function cannot hold them.
std::vector<std::string>* rows_seen = nullptr;

std::string bits_of_tensor(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.detach().contiguous().cpu();
  nsa::train::Hash64 hash;
  hash.add(bytes.const_data_ptr(), bytes.nbytes());
  return hash.hex();
}

std::unique_ptr<at::ObserverContext> look_at_embedding(const at::RecordFunction& function) {
  if (rows_seen == nullptr || std::string_view(function.name()) != "aten::embedding") return nullptr;
  const auto inputs = function.inputs();
  if (inputs.size() < 2 || !inputs[1].isTensor()) return nullptr;
  const at::Tensor tokens = inputs[1].toTensor();
  if (tokens.dim() != 2) return nullptr;
  const at::NoGradGuard no_grad;
  for (std::int64_t row = 0; row < tokens.size(0); ++row) rows_seen->push_back(bits_of_tensor(tokens[row]));
  return nullptr;
}

std::vector<std::string> rows_of_this_step;

}  // namespace

RankWatch::RankWatch(nsa::LanguageModel model) : model_(std::move(model)) {
  if (rows_seen != nullptr) throw std::logic_error("RankWatch: another one lives");
  for (const auto& item : model_->named_parameters()) parameters_.emplace_back(item.key(), item.value());
  arrived_.resize(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    hooks_.push_back(parameters_[i].second.register_hook([this, i](const at::Tensor& gradient) {
      const at::NoGradGuard no_grad;
      Arrival& arrival = arrived_[i];
      arrival.gradient = arrival.gradient.defined() ? arrival.gradient + gradient : gradient.clone();
      ++arrival.times;
      return gradient;
    }));
  rows_seen = &rows_of_this_step;
  tap_ = std::make_unique<probes::OpTap>(probes::OpTap::Of::this_thread, look_at_embedding, nullptr,
                                         probes::TapSees{.inputs = true});
  watch_choices();
}

RankWatch::~RankWatch() {
  rows_seen = nullptr;
  for (std::size_t i = 0; i < hooks_.size(); ++i) parameters_[i].second.remove_hook(hooks_[i]);
}

void RankWatch::watch_choices() {
  choices_.resize(static_cast<std::size_t>(model_->config.n_layers));
  const auto layer = std::make_shared<std::size_t>(0);  // the provider is asked once for each layer, in order
  model_->runtime->ops = [this, inner = model_->runtime->ops, layer](const nsa::Call& call) {
    nsa::Ops ops = inner(call);
    const std::size_t own = (*layer)++ % choices_.size();
    if (!keeping_) return ops;
    ops.replace(&nsa::Ops::select, [this, own, select = ops.select](const nsa::SelectArgs& args) {
      at::Tensor blocks = select(args);
      choices_[own].push_back(blocks.detach().cpu().clone());
      return blocks;
    });
    return ops;
  };
}

void RankWatch::keep_weights(const std::string& prefix) {
  for (const auto& [name, value] : parameters_) kept_[prefix + name] = value.detach().cpu().clone();
}

void RankWatch::begin(bool keep) {
  rows_of_this_step.clear();
  arrived_.assign(parameters_.size(), {});
  keeping_ = keep;
  if (keep) keep_weights("before/");
}

void RankWatch::reduced() {
  if (!keeping_) return;
  for (const auto& [name, value] : parameters_)
    if (value.grad().defined()) kept_["gradient/" + name] = value.grad().detach().cpu().clone();
}

void RankWatch::take(StepSeen& seen) {
  const at::NoGradGuard no_grad;
  seen.rows = rows_of_this_step;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Arrival& arrival = arrived_[i];
    ParameterSeen one{parameters_[i].first, bits_of_tensor(parameters_[i].second), 0, arrival.times, true};
    if (arrival.gradient.defined()) {
      one.own_norm = arrival.gradient.to(at::kDouble).norm().item<double>();
      one.finite = at::isfinite(arrival.gradient).all().item<bool>();
    }
    seen.parameters.push_back(std::move(one));
  }
  if (!keeping_) return;
  keeping_ = false;
  keep_weights("after/");
  for (std::size_t i = 0; i < choices_.size(); ++i)
    if (!choices_[i].empty()) kept_[fmt::format("blocks/{}", i)] = at::cat(choices_[i]);
}

}  // namespace suites::distributed_ranks
