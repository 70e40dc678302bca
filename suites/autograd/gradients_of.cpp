#include "suites/autograd/gradients_of.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace suites::autograd_cases {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double relative_distance(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() && !b.defined()) return 0;
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes()) return kInfinity;
  const at::Tensor wide = b.to(at::kDouble);
  const double off = (a.to(at::kDouble) - wide).abs().max().item<double>(), scale = wide.abs().max().item<double>();
  if (off == 0) return 0;
  return std::isfinite(off) && scale > 0 ? off / scale : kInfinity;
}

}  // namespace

Gradients copy_gradients(const nsa::LanguageModelImpl& model) {
  Gradients all;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    all.emplace_back(item.key(), gradient.defined() ? gradient.detach().clone() : gradient);
  }
  return all;
}

Distance distance(const Gradients& a, const Gradients& b) {
  if (a.size() != b.size()) throw std::logic_error("gradients of two models with other parameters");
  Distance found;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double off = relative_distance(a[i].second, b[i].second);
    if (off == 0) continue;
    found.bit_equal = false;
    if (off > found.largest) {
      found.largest = off;
      found.parameter = a[i].first;
    }
  }
  return found;
}

reports::Json Distance::evidence() const {
  return {{"largest_relative_difference", reports::number(largest)}, {"parameter", parameter}};
}

double repeat_tolerance(const at::Tensor& parameter) {
  if (!parameter.is_cuda()) return 0;
  return parameter.scalar_type() == at::kDouble  ? 0x1p-40
         : parameter.scalar_type() == at::kFloat ? 0x1p-16
                                                 : 0x1p-5;  // bf16: a few units of 2^-8, in the worst of 10^7 elements
}

}  // namespace suites::autograd_cases
