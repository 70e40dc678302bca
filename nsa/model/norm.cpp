#include "nsa/model/norm.hpp"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include "nsa/cuda/norm.hpp"

namespace nsa {

namespace {

constexpr double kEpsilon = 1e-6;

// Which flag keeps the norm from our own kernels; "" where none does.
std::string against(const EffectiveFlags& flags) {
  const auto origin = [&](const char* field) {
    const auto known = flags.origin.find(field);
    return known == flags.origin.end() ? std::string(field) : known->second;
  };
  if (!flags.fused_norm) return origin("fused_norm");
  if (!flags.use_cuda) return origin("use_cuda");
  return flags.force_parity ? origin("force_parity") : "";
}

}  // namespace

RmsNormImpl::RmsNormImpl(std::int64_t width) : weight(register_parameter("weight", torch::ones({width}))) {}

torch::Tensor RmsNormImpl::forward(const torch::Tensor& x) {
  return at::rms_norm(x, {weight.size(0)}, weight, kEpsilon);
}

Normed RmsNormImpl::after(const torch::Tensor& x, const torch::Tensor& delta, const Runtime& runtime) {
  const auto added = delta.defined() ? std::optional(delta) : std::nullopt;
  std::string refused = against(runtime.flags);
  if (refused.empty()) refused = cuda::norm_refusal(x, added, weight);
  if (refused.empty()) {
    runtime.parts->add({"norm", "cuda", "served"});
    const auto [sum, y] = cuda::norm(x, added, weight, kEpsilon);
    return {sum, y};
  }
  runtime.parts->add({"norm", "aten", "cuda refused: " + refused});
  Normed result{added ? x + delta : x, {}};
  result.y = forward(result.stream);
  return result;
}

void RmsNormImpl::reset_parameters() { torch::nn::init::ones_(weight); }

}  // namespace nsa
