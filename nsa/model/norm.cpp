#include "nsa/model/norm.hpp"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include "nsa/cuda/norm.hpp"
#include "nsa/route.hpp"

namespace nsa {

namespace {

constexpr double kEpsilon = 1e-6;

}  // namespace

RmsNormImpl::RmsNormImpl(std::int64_t width) : weight(register_parameter("weight", torch::ones({width}))) {}

torch::Tensor RmsNormImpl::forward(const torch::Tensor& x) {
  return at::rms_norm(x, {weight.size(0)}, weight, kEpsilon);
}

Normed RmsNormImpl::after(const torch::Tensor& x, const torch::Tensor& delta, const Runtime& runtime) {
  const auto added = delta.defined() ? std::optional(delta) : std::nullopt;
  std::string refused = flag_against(runtime.flags, runtime.flags.fused_norm, "fused_norm");
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
