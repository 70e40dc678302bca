#include "nsa/train/adamw.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

namespace nsa::train {

namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;

bool is_narrow(const at::Tensor& tensor) { return tensor.element_size() < 4; }

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

// Everything in which `given` is not the state that `own` is.
std::vector<std::string> differences(const AdamW::State& own, const AdamW::State& given) {
  std::vector<std::string> found;
  for (const auto& [name, tensor] : own) {
    const auto other = given.find(name);
    if (other == given.end()) {
      found.push_back(fmt::format("{} is missing", name));
    } else if (describe(other->second) != describe(tensor)) {
      found.push_back(fmt::format("{} is {}, here it is {}", name, describe(other->second), describe(tensor)));
    }
  }
  for (const auto& [name, tensor] : given)
    if (!own.contains(name)) found.push_back(fmt::format("{} is unknown here", name));
  return found;
}

std::vector<std::string> numbers(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> parameters, double weight_decay, bool master_weights)
    : names_(numbers(parameters.size())), parameters_(std::move(parameters)), weight_decay_(weight_decay) {
  for (const auto& parameter : parameters_) {
    const at::Tensor value = parameter.detach();  // the parameter's own storage
    masters_.push_back(is_narrow(value) && master_weights ? value.to(at::kFloat) : value);
    exp_avg_.push_back(at::zeros_like(masters_.back()));
    exp_avg_sq_.push_back(at::zeros_like(masters_.back()));
    steps_.push_back(at::zeros({}, value.options().dtype(at::kFloat)));
  }
}

AdamW::AdamW(const torch::nn::Module& module, double weight_decay, bool master_weights)
    : AdamW(module.parameters(), weight_decay, master_weights) {
  names_ = module.named_parameters().keys();
}

void AdamW::step(double lr) { update(lr, std::nullopt); }

void AdamW::step(const at::Tensor& lr, const at::Tensor& skip) { update(lr, skip); }

template <typename Rate>
void AdamW::update(const Rate& lr, const std::optional<at::Tensor>& skip) {
  const at::NoGradGuard no_grad;
  // Lists for kernels that take many parameters a launch: the update, and the casts before and after it.
  std::vector<at::Tensor> gradients, masters, exp_avg, exp_avg_sq, steps, narrow, narrow_masters;
  std::vector<at::Tensor> given, cast;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    // The fused kernel looks at the first of its lists only and would read beyond a smaller gradient.
    if (gradient.sizes() != parameters_[i].sizes() || gradient.device() != parameters_[i].device())
      throw std::invalid_argument(fmt::format("optimizer: the gradient of {} is {} on {}, the parameter is {} on {}",
                                              names_[i], describe(gradient), gradient.device().str(),
                                              describe(parameters_[i]), parameters_[i].device().str()));
    if (gradient.scalar_type() == masters_[i].scalar_type()) {
      gradients.push_back(gradient);
    } else {
      given.push_back(gradient);
      cast.push_back(at::empty_like(gradient, masters_[i].scalar_type()));
      gradients.push_back(cast.back());
    }
    masters.push_back(masters_[i]);
    exp_avg.push_back(exp_avg_[i]);
    exp_avg_sq.push_back(exp_avg_sq_[i]);
    steps.push_back(steps_[i]);
    if (masters_[i].scalar_type() == parameters_[i].scalar_type()) continue;
    narrow.push_back(parameters_[i].detach());
    narrow_masters.push_back(masters_[i]);
  }
  if (gradients.empty()) return;
  if (!cast.empty()) at::_foreach_copy_(cast, given);
  if (skip)
    at::_foreach_add_(steps, 1 - *skip);
  else
    at::_foreach_add_(steps, 1);
  at::_fused_adamw_(masters, gradients, exp_avg, exp_avg_sq, {}, steps, lr, kBeta1, kBeta2, weight_decay_, kEpsilon,
                    /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, /*found_inf=*/skip);
  if (!narrow.empty()) at::_foreach_copy_(narrow, narrow_masters);
}

AdamW::State AdamW::state() const {
  State state;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    state["exp_avg/" + names_[i]] = exp_avg_[i];
    state["exp_avg_sq/" + names_[i]] = exp_avg_sq_[i];
    state["step/" + names_[i]] = steps_[i];
    if (masters_[i].scalar_type() != parameters_[i].scalar_type()) state["master/" + names_[i]] = masters_[i];
  }
  return state;
}

void AdamW::load(const State& given) {
  const State own = state();
  if (const auto wrong = differences(own, given); !wrong.empty())
    throw std::invalid_argument(fmt::format("optimizer state: {}", fmt::join(wrong, "; ")));
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) tensor.copy_(given.at(name));
}

}  // namespace nsa::train
