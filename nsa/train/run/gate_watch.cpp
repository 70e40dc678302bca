#include "nsa/train/run/gate_watch.hpp"

#include <ATen/Functions.h>

#include "nsa/train/run/heartbeat.hpp"

namespace nsa::train {

namespace {

constexpr std::string_view kStage = ".attention.gates";

// [entropy mean, entropy min, largest share, share of collapsed tokens, mean of cmp, of sel, of win], fp32
at::Tensor figures_of(const at::Tensor& gates) {
  const at::NoGradGuard no_grad;
  const at::Tensor wide = gates.detach().flatten(0, 2).to(at::kFloat);  // [tokens * groups, 3]
  const at::Tensor shares = wide / wide.sum(-1, true);
  const at::Tensor entropy = -at::xlogy(shares, shares).sum(-1), largest = shares.amax(-1);
  return at::cat({at::stack({entropy.mean(), entropy.min(), largest.max(),
                             (largest > GateWatch::kCollapsed).to(at::kFloat).mean()}),
                  shares.mean(0)});
}

}  // namespace

void GateWatch::begin() {
  layers_.clear();
  before_ = model_->runtime->observe;
  watching_ = true;
  model_->runtime->observe = [this, before = before_](std::string_view name, const at::Tensor& value) {
    if (before) before(name, value);
    if (name.ends_with(kStage)) layers_[std::string(name)] = figures_of(value);
  };
}

nlohmann::json GateWatch::end() {
  if (!watching_) return nlohmann::json::object();
  model_->runtime->observe = before_;
  watching_ = false;
  if (layers_.empty()) return nlohmann::json::object();
  std::vector<at::Tensor> rows;
  for (const auto& [name, row] : layers_) rows.push_back(row);
  const at::Tensor all = at::stack(rows).cpu();  // [layers, 7]
  const auto number = [](const at::Tensor& value) { return json_number(value.item<double>()); };
  nlohmann::json per_layer = nlohmann::json::object(), shares = nlohmann::json::array();
  for (std::int64_t i = 0; const auto& [name, row] : layers_)
    per_layer[name.substr(0, name.size() - kStage.size())] = number(all[i++][0]);
  for (int branch = 0; branch < 3; ++branch) shares.push_back(number(all.select(1, 4 + branch).mean()));
  return {{"gate_entropy_mean", number(all.select(1, 0).mean())},
          {"gate_entropy_min", number(all.select(1, 1).min())},
          {"gate_entropy_per_layer", per_layer},
          {"gate_max_gate", number(all.select(1, 2).max())},
          {"gate_collapsed_share", number(all.select(1, 3).mean())},
          {"gate_branch_shares", shares}};
}

}  // namespace nsa::train
