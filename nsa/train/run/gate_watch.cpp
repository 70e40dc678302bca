#include "nsa/train/run/gate_watch.hpp"

#include <ATen/Functions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include "nsa/train/run/heartbeat.hpp"

namespace nsa::train {

namespace {

constexpr std::string_view kAttention = ".attention";  // the end of a layer's name here

// [entropy mean, entropy min, largest share, share of collapsed tokens, mean of cmp, of sel, of win], fp32
at::Tensor figures_of(const at::Tensor& gates) {
  const at::Tensor wide = gates.flatten(0, 2).to(at::kFloat);  // [tokens * groups, 3]
  const at::Tensor shares = wide / wide.sum(-1, true);
  const at::Tensor entropy = -at::xlogy(shares, shares).sum(-1), largest = shares.amax(-1);
  return at::cat({at::stack({entropy.mean(), entropy.min(), largest.max(),
                             (largest > GateWatch::kCollapsed).to(at::kFloat).mean()}),
                  shares.mean(0)});
}

}  // namespace

GateWatch::GateWatch(LanguageModel model) : model_(std::move(model)) {
  model_->runtime->watch_gates = [this](std::string_view layer, const at::Tensor& gates) {
    if (!at::GradMode::is_enabled()) return;
    const bool capturing =
        gates.is_cuda() && c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
    (capturing ? captured_ : ordinary_)[std::string(layer)] = gates.detach();
  };
}

GateWatch::~GateWatch() { model_->runtime->watch_gates = {}; }

nlohmann::json GateWatch::figures(bool replayed) const {
  const Layers& layers = replayed ? captured_ : ordinary_;
  if (layers.empty()) return nlohmann::json::object();
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (const auto& [name, gates] : layers) rows.push_back(figures_of(gates));
  const at::Tensor all = at::stack(rows).cpu();  // [layers, 7]
  const auto number = [](const at::Tensor& value) { return json_number(value.item<double>()); };
  nlohmann::json per_layer = nlohmann::json::object(), shares = nlohmann::json::array();
  for (std::int64_t i = 0; const auto& [name, gates] : layers)
    per_layer[name.substr(0, name.size() - kAttention.size())] = number(all[i++][0]);
  for (int branch = 0; branch < 3; ++branch) shares.push_back(number(all.select(1, 4 + branch).mean()));
  return {{"gate_entropy_mean", number(all.select(1, 0).mean())},
          {"gate_entropy_min", number(all.select(1, 1).min())},
          {"gate_entropy_per_layer", per_layer},
          {"gate_max_gate", number(all.select(1, 2).max())},
          {"gate_collapsed_share", number(all.select(1, 3).mean())},
          {"gate_branch_shares", shares}};
}

}  // namespace nsa::train
