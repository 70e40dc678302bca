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

#include "nsa/cuda/update.hpp"
#include "nsa/train/gradients.hpp"

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

AdamW::AdamW(const torch::nn::Module& module, double weight_decay, bool master_weights,
             std::shared_ptr<const Runtime> runtime)
    : AdamW(module.parameters(), weight_decay, master_weights) {
  names_ = module.named_parameters().keys();
  runtime_ = std::move(runtime);
}

void AdamW::step(double lr) { update(lists(), lr, std::nullopt); }

void AdamW::step(const at::Tensor& lr, const at::Tensor& skip) { update(lists(), lr, std::optional(skip)); }

void AdamW::clipped_step(double norm, double max_norm, double lr) { clip_and_update(norm, max_norm, lr, std::nullopt); }

void AdamW::clipped_step(const at::Tensor& norm, double max_norm, const at::Tensor& lr, const at::Tensor& skip) {
  clip_and_update(norm, max_norm, lr, std::optional(skip));
}

at::Tensor AdamW::gradient_norm() const {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  const bool served = flag_against_kernels().empty() && cuda::norm_of_refusal(gradients).empty();
  return served ? cuda::norm_of(gradients) : global_norm(gradients);
}

std::string AdamW::flag_against_kernels() const {
  return runtime_ ? flag_against(runtime_->flags, runtime_->flags.fused_update, "fused_update") : "no flags";
}

AdamW::Lists AdamW::lists() const {
  Lists all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    // The fused kernels look at the first of their lists only and would read beyond a smaller gradient.
    if (gradient.sizes() != parameters_[i].sizes() || gradient.device() != parameters_[i].device())
      throw std::invalid_argument(fmt::format("optimizer: the gradient of {} is {} on {}, the parameter is {} on {}",
                                              names_[i], describe(gradient), gradient.device().str(),
                                              describe(parameters_[i]), parameters_[i].device().str()));
    all.parameters.push_back(parameters_[i].detach());
    all.gradients.push_back(gradient);
    all.masters.push_back(masters_[i]);
    all.exp_avg.push_back(exp_avg_[i]);
    all.exp_avg_sq.push_back(exp_avg_sq_[i]);
    all.steps.push_back(steps_[i]);
  }
  return all;
}

void AdamW::count(const Lists& all, const std::optional<at::Tensor>& skip) const {
  if (skip)
    at::_foreach_add_(all.steps, 1 - *skip);
  else
    at::_foreach_add_(all.steps, 1);
}

template <typename Rate>
void AdamW::update(Lists all, const Rate& lr, const std::optional<at::Tensor>& skip) {
  const at::NoGradGuard no_grad;
  if (all.gradients.empty()) return;
  std::vector<at::Tensor> narrow, narrow_masters, given, cast;  // what is cast before the update, and after it
  for (std::size_t i = 0; i < all.gradients.size(); ++i) {
    at::Tensor& gradient = all.gradients[i];
    if (gradient.scalar_type() != all.masters[i].scalar_type()) {
      given.push_back(gradient);
      cast.push_back(at::empty_like(gradient, all.masters[i].scalar_type()));
      gradient = cast.back();
    }
    if (all.masters[i].scalar_type() == all.parameters[i].scalar_type()) continue;
    narrow.push_back(all.parameters[i]);
    narrow_masters.push_back(all.masters[i]);
  }
  if (!cast.empty()) at::_foreach_copy_(cast, given);
  count(all, skip);
  at::_fused_adamw_(all.masters, all.gradients, all.exp_avg, all.exp_avg_sq, {}, all.steps, lr, kBeta1, kBeta2,
                    weight_decay_, kEpsilon, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{},
                    /*found_inf=*/skip);
  if (!narrow.empty()) at::_foreach_copy_(narrow, narrow_masters);
}

template <typename Norm, typename Rate>
void AdamW::clip_and_update(const Norm& norm, double max_norm, const Rate& lr, const std::optional<at::Tensor>& skip) {
  const at::NoGradGuard no_grad;
  Lists all = lists();
  if (all.gradients.empty()) return;
  std::vector<cuda::UpdateTensors> tensors;
  std::string refused = flag_against_kernels();
  if (refused.empty()) {
    tensors.reserve(all.gradients.size());
    for (std::size_t i = 0; i < all.gradients.size(); ++i)
      tensors.push_back(
          {all.parameters[i], all.gradients[i], all.masters[i], all.exp_avg[i], all.exp_avg_sq[i], all.steps[i]});
    refused = cuda::update_refusal(tensors);
  }
  if (runtime_ && refused.empty())
    runtime_->parts->add({"update", "cuda", "served"});
  else if (runtime_)
    runtime_->parts->add({"update", "aten", "cuda refused: " + refused});
  if (!refused.empty()) {
    clip_to_norm(all.gradients, norm, max_norm);
    return update(std::move(all), lr, skip);
  }
  count(all, skip);
  cuda::update(tensors, {.rate = lr,
                         .norm = norm,
                         .max_norm = max_norm,
                         .decay = weight_decay_,
                         .beta1 = kBeta1,
                         .beta2 = kBeta2,
                         .epsilon = kEpsilon,
                         .skip = skip.value_or(at::Tensor())});
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
