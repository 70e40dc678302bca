#include "nsa/model/gate.hpp"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include <algorithm>

#include "nsa/cuda/project.hpp"
#include "nsa/ops.hpp"

namespace nsa {

GateImpl::GateImpl(std::int64_t d_k, std::int64_t groups, GateActivation activation, double tau)
    : groups_(groups), activation_(activation), tau_(tau) {
  const std::int64_t hidden = std::max<std::int64_t>(1, d_k / 2);
  fc1 = register_module("fc1", torch::nn::Linear(d_k, hidden));
  fc2 = register_module("fc2", torch::nn::Linear(hidden, 3));
  reset_fc2();
}

void GateImpl::reset_fc2() {
  torch::nn::init::xavier_uniform_(fc2->weight, /*gain=*/0.1);
  torch::nn::init::zeros_(fc2->bias);
}

void GateImpl::reset_parameters() {
  fc1->reset_parameters();
  fc2->reset_parameters();
  reset_fc2();
}

torch::Tensor GateImpl::forward(const torch::Tensor& q, const EffectiveFlags& flags) {
  const auto wide = accumulation_type(q.scalar_type());
  const auto constant = q.options().dtype(wide).requires_grad(false);
  const std::vector<std::int64_t> shape{q.size(0), q.size(1), groups_, 3};
  if (flags.uniform_gate) return at::full(shape, 1.0 / 3.0, constant);
  if (flags.forced_branch != ForcedBranch::none) {
    auto gates = at::zeros(shape, constant);
    gates.select(-1, static_cast<std::int64_t>(flags.forced_branch) - static_cast<std::int64_t>(ForcedBranch::cmp))
        .fill_(1.0);
    return gates;
  }
  const auto mean = q.to(wide).unflatten(2, {groups_, q.size(2) / groups_}).mean(3);
  const auto linear = [&](const torch::nn::Linear& layer, const at::Tensor& x) {
    return at::linear(x, layer->weight.to(wide), layer->bias.to(wide));
  };
  const auto logits = linear(fc2, at::silu(linear(fc1, mean))) / tau_;
  const auto gates = activation_ == GateActivation::softmax ? at::softmax(logits, -1) : at::sigmoid(logits);
  return flags.stopgrad_gates ? gates.detach() : gates;
}

torch::Tensor GateImpl::of_mean(const torch::Tensor& mean, const EffectiveFlags& flags) {
  const auto gates = cuda::gate({mean, fc1->weight, fc1->bias, fc2->weight, fc2->bias, tau_, activation_});
  return flags.stopgrad_gates ? gates.detach() : gates;
}

}  // namespace nsa
