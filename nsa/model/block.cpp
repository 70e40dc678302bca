#include "nsa/model/block.hpp"

#include <fmt/format.h>

#include "nsa/model/checked.hpp"
#include "nsa/nvtx.hpp"

namespace nsa {

BlockImpl::BlockImpl(const ModelConfig& config, std::int64_t layer, std::shared_ptr<Runtime> runtime)
    : name_(fmt::format("layers.{}", layer)), runtime_(std::move(runtime)) {
  norm_attention = register_module("norm_attention", RmsNorm(checked(config).dim));
  attention = register_module("attention", NsaAttention(config, layer, runtime_));
  norm_mlp = register_module("norm_mlp", RmsNorm(config.dim));
  mlp = register_module("mlp", Mlp(config.dim));
}

Residual BlockImpl::forward(const Residual& x, const torch::Tensor& rotations, const CuSeqlens& cu_seqlens) {
  return around(x, [&](const torch::Tensor& normed) { return attention(normed, rotations, cu_seqlens); });
}

Residual BlockImpl::around(const Residual& x, const std::function<torch::Tensor(const torch::Tensor&)>& attend) {
  const NvtxRange whole(runtime_->flags.nvtx, name_.c_str());
  const auto observe = [&](std::string_view stage, const torch::Tensor& value) {
    if (runtime_->observe) runtime_->observe(fmt::format("{}{}", name_, stage), value);
  };
  const auto [before, normed] = norm_attention->after(x.x, x.added, *runtime_);
  const auto attended = attend(normed);
  observe(".attention", attended);

  const NvtxRange range(runtime_->flags.nvtx, "mlp");
  const auto [middle, inner] = norm_mlp->after(before, attended, *runtime_);
  const auto [wide, joined] = mlp->routed(inner, *runtime_);
  observe(".mlp", wide);
  // Of a sum in the norm's kernel an observer would see a part of the gradient alone.
  if (joined && !runtime_->observe) return {middle, wide};
  const auto result = middle + wide;
  observe("", result);
  return result;
}

void BlockImpl::reset_parameters() {
  norm_attention->reset_parameters();
  attention->reset_parameters();
  norm_mlp->reset_parameters();
  mlp->reset_parameters();
}

}  // namespace nsa
