#include "nsa/train/adamw.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace nsa::train {

namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;

bool is_narrow(const at::Tensor& tensor) { return tensor.element_size() < 4; }

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> parameters, double weight_decay)
    : parameters_(std::move(parameters)), weight_decay_(weight_decay) {
  for (const auto& parameter : parameters_) {
    const at::Tensor value = parameter.detach();  // the parameter's own storage
    masters_.push_back(is_narrow(value) ? value.to(at::kFloat) : value);
    exp_avg_.push_back(at::zeros_like(masters_.back()));
    exp_avg_sq_.push_back(at::zeros_like(masters_.back()));
    steps_.push_back(at::zeros({}, value.options().dtype(at::kFloat)));
  }
}

void AdamW::step(double lr) {
  const at::NoGradGuard no_grad;
  // Lists for the fused kernel: one launch for many parameters.
  std::vector<at::Tensor> gradients, masters, exp_avg, exp_avg_sq, steps, narrow, narrow_masters;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    gradients.push_back(gradient.to(masters_[i].scalar_type()));
    masters.push_back(masters_[i]);
    exp_avg.push_back(exp_avg_[i]);
    exp_avg_sq.push_back(exp_avg_sq_[i]);
    steps.push_back(steps_[i]);
    if (!is_narrow(parameters_[i])) continue;
    narrow.push_back(parameters_[i].detach());
    narrow_masters.push_back(masters_[i]);
  }
  if (gradients.empty()) return;
  at::_foreach_add_(steps, 1);
  at::_fused_adamw_(masters, gradients, exp_avg, exp_avg_sq, {}, steps, lr, kBeta1, kBeta2, weight_decay_, kEpsilon,
                    /*amsgrad=*/false, /*maximize=*/false);
  if (!narrow.empty()) at::_foreach_copy_(narrow, narrow_masters);
}

}  // namespace nsa::train
