#include "nsa/cuda/norm.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/plan/norm_plan.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<at::Tensor>;

constexpr std::int64_t kColumns = 8;  // of 16 bytes

// Inputs in this order: the residual's addend comes last, because there may be none.
enum Input : std::size_t { kX, kWeight, kDelta, kInputs };

struct Norm : torch::autograd::Function<Norm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const MaybeTensor& delta, double epsilon) {
    const auto [normed, rstd] = norm_forward(x, delta, weight, epsilon);
    context->save_for_backward({normed.sum, weight, rstd});
    context->saved_data["delta"] = delta.has_value();
    context->set_materialize_grads(false);
    return {normed.sum, normed.y};
  }
  static variable_list backward(AutogradContext* context, const variable_list& arrived) {
    refuse_second_derivative("norm");
    const bool delta = context->saved_data.at("delta").toBool();
    const bool wants_x = context->needs_input_grad(kX) || (delta && context->needs_input_grad(kDelta));
    const auto& [dsum, dy] = std::tie(arrived[0], arrived[1]);
    NormGradients result{dsum, {}};  // where nothing arrives behind the norm
    if (dy.defined()) {
      const auto saved = context->get_saved_variables();
      result = norm_backward({dense(dy), dsum.defined() ? dense(dsum) : dsum, saved[0], saved[1], saved[2]}, wants_x,
                             context->needs_input_grad(kWeight));
    }
    variable_list gradients(kInputs + 1);  // and epsilon's
    if (context->needs_input_grad(kX)) gradients[kX] = result.x;
    if (delta && context->needs_input_grad(kDelta)) gradients[kDelta] = result.x;
    gradients[kWeight] = result.weight;
    return gradients;
  }
};

}  // namespace

std::string norm_refusal(const at::Tensor& x, const MaybeTensor& delta, const at::Tensor& weight) {
  if (auto reason = device_refusal(x); !reason.empty()) return reason;
  const auto type = x.scalar_type();
  if (type != at::kBFloat16 && type != at::kHalf)
    return fmt::format("x is {}; served: BFloat16 and Half", c10::toString(type));
  const auto unlike = [&](const at::Tensor& t) { return t.scalar_type() != type || t.device() != x.device(); };
  if (unlike(weight) || (delta && unlike(*delta)))
    return fmt::format("x is {}, and weight or the addend is of another type or device; served: one for all",
                       c10::toString(type));
  if (weight.dim() != 1 || x.dim() < 1 || x.size(-1) != weight.size(0) || (delta && delta->sizes() != x.sizes()))
    return "x, weight and the addend are not of one width and shape";
  const std::int64_t width = weight.size(0);
  if (width < kColumns || width % kColumns != 0 || width > kernels::kWidestNorm)
    return fmt::format("width {}; served: multiples of {} up to {}", width, kColumns, kernels::kWidestNorm);
  if (x.numel() / width > std::numeric_limits<std::int32_t>::max())
    return fmt::format("{} rows; served: at most {}", x.numel() / width, std::numeric_limits<std::int32_t>::max());
  return "";
}

NormedRows norm_forward(const at::Tensor& x, const MaybeTensor& delta, const at::Tensor& weight, double epsilon) {
  const OnDeviceOf device(x);
  kernels::Norm p;
  p.width = size_of(weight, 0);
  p.rows = x.numel() / p.width;
  p.epsilon = static_cast<float>(epsilon);
  p.storage = storage_of(x);
  const auto like_x = [&] { return empty(x.sizes(), x.scalar_type(), x); };
  NormedRows result{{delta ? like_x() : x, like_x()}, empty({p.rows}, at::kFloat, x)};
  p.x = x.const_data_ptr();
  p.weight = weight.const_data_ptr();
  if (delta) {
    p.delta = delta->const_data_ptr();
    p.sum = result.normed.sum.data_ptr();
  }
  p.y = result.normed.y.data_ptr();
  p.rstd = result.rstd.data_ptr<float>();
  kernels::norm_forward(p, device.stream());
  return result;
}

NormGradients norm_backward(const NormGiven& given, bool wants_x, bool wants_weight) {
  const OnDeviceOf device(given.sum);
  kernels::NormBackward p;
  p.width = size_of(given.weight, 0);
  p.rows = given.rstd.numel();
  p.storage = storage_of(given.sum);
  const auto plan = kernels::plan_norm_backward(p.rows, p.width, kernels::current_device());
  p.dy = given.dy.const_data_ptr();
  if (given.dsum.defined()) p.dsum = given.dsum.const_data_ptr();
  p.sum = given.sum.const_data_ptr();
  p.weight = given.weight.const_data_ptr();
  p.rstd = given.rstd.const_data_ptr<float>();
  NormGradients result;
  at::Tensor parts;
  if (wants_x) {
    result.x = empty(given.sum.sizes(), given.sum.scalar_type(), given.sum);
    p.dx = result.x.data_ptr();
  }
  if (wants_weight) {
    result.weight = empty(given.weight.sizes(), given.weight.scalar_type(), given.weight);
    parts = empty({plan.workspace}, at::kFloat, given.sum);
    p.dweight = result.weight.data_ptr();
    p.workspace = parts.data_ptr<float>();
  }
  kernels::norm_backward(p, plan, device.stream());
  return result;
}

Normed norm(const at::Tensor& x, const MaybeTensor& delta, const at::Tensor& weight, double epsilon) {
  if (const auto reason = norm_refusal(x, delta, weight); !reason.empty())
    throw Unsupported(fmt::format("cuda does not serve this norm: {}; use at::rms_norm", reason));
  const OnDeviceOf device(x);
  const auto result = Norm::apply(dense(x), dense(weight), delta ? MaybeTensor(dense(*delta)) : std::nullopt, epsilon);
  return {result[0], result[1]};
}

}  // namespace nsa::cuda
