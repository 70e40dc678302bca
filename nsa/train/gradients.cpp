#include "nsa/train/gradients.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace nsa::train {

namespace {

std::vector<at::Tensor> gradients(const torch::nn::Module& module) {
  std::vector<at::Tensor> found;
  for (const auto& parameter : module.parameters())
    if (parameter.grad().defined()) found.push_back(parameter.grad());
  return found;
}

}  // namespace

at::Tensor global_norm(const torch::nn::Module& module) { return global_norm(gradients(module)); }

at::Tensor global_norm(const std::vector<at::Tensor>& all) {
  const at::NoGradGuard no_grad;
  if (all.empty()) return at::zeros({});
  const auto dtype = all.front().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(all, 2, dtype)));
}

std::string first_nonfinite_gradient(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    if (gradient.defined() && !at::isfinite(gradient).all().item<bool>()) return parameter.key();
  }
  return "";
}

void clip_to_norm(const torch::nn::Module& module, double norm, double max_norm) {
  clip_to_norm(gradients(module), norm, max_norm);
}

void clip_to_norm(const torch::nn::Module& module, const at::Tensor& norm, double max_norm) {
  clip_to_norm(gradients(module), norm, max_norm);
}

void clip_to_norm(const std::vector<at::Tensor>& all, double norm, double max_norm) {
  if (!(norm > max_norm)) return;
  const at::NoGradGuard no_grad;
  at::_foreach_mul_(all, max_norm / norm);
}

void clip_to_norm(const std::vector<at::Tensor>& all, const at::Tensor& norm, double max_norm) {
  const at::NoGradGuard no_grad;
  if (all.empty()) return;
  const at::Tensor exact = norm.to(at::kDouble);  // divided and rounded as a number of the host is
  const at::Tensor factor = at::where(exact.gt(max_norm).logical_and(exact.isfinite()), max_norm / exact, 1.0);
  // A number from the host takes part in products of 16 bits as fp32 on a GPU, but rounded to 16 bits on the CPU.
  if (const auto type = all.front().scalar_type(); !all.front().is_cuda() || !c10::isReducedFloatingType(type))
    return at::_foreach_mul_(all, factor.to(type));
  std::vector<at::Tensor> wide;
  wide.reserve(all.size());
  for (const auto& gradient : all) wide.push_back(at::empty_like(gradient, gradient.options().dtype(at::kFloat)));
  at::_foreach_copy_(wide, all);
  at::_foreach_mul_(wide, factor.to(at::kFloat));
  at::_foreach_copy_(all, wide);
}

}  // namespace nsa::train
