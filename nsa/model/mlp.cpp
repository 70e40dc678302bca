#include "nsa/model/mlp.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nsa/cuda/mlp.hpp"
#include "nsa/cuda/rows.hpp"

namespace nsa {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum MlpInput : std::size_t { kMlpX, kFc1, kFc2, kOwnSilu, kMlpInputs };

// The products are those that torch's Linear and its derivative make: of the rows [tokens, width], with the same
// layouts; but for those with the SiLU in them.
struct JoinedMlp : torch::autograd::Function<JoinedMlp> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& fc1, const at::Tensor& fc2,
                            bool own_silu) {
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    const auto [hidden, active] = own_silu ? cuda::silu_product(rows, fc1) : one_by_one(rows, fc1);
    context->save_for_backward({rows, fc1, fc2, hidden, active});
    context->saved_data["own_silu"] = own_silu;
    return at::_unsafe_view(at::mm(active, fc2.t()), x.sizes());
  }
  static variable_list backward(AutogradContext* context, const variable_list& arrived) {
    cuda::refuse_second_derivative("mlp");
    const auto saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &fc1 = saved[1], &fc2 = saved[2], &hidden = saved[3], &active = saved[4];
    const at::Tensor dy = arrived[0].reshape({-1, arrived[0].size(-1)});
    variable_list gradients(kMlpInputs);
    if (context->needs_input_grad(kFc2)) gradients[kFc2] = at::mm(dy.t(), active);
    if (!context->needs_input_grad(kMlpX) && !context->needs_input_grad(kFc1)) return gradients;
    const at::Tensor d = context->saved_data.at("own_silu").toBool() ? cuda::silu_product_backward(dy, fc2, hidden)
                                                                     : one_by_one_backward(dy, fc2, hidden);
    if (context->needs_input_grad(kFc1)) gradients[kFc1] = at::mm(d.t(), rows);
    if (context->needs_input_grad(kMlpX)) gradients[kMlpX] = at::mm(d, fc1).view(arrived[0].sizes());
    return gradients;
  }

 private:
  static cuda::Activated one_by_one(const at::Tensor& rows, const at::Tensor& fc1) {
    const at::Tensor hidden = at::mm(rows, fc1.t());
    return {hidden, at::silu(hidden)};
  }
  static at::Tensor one_by_one_backward(const at::Tensor& dy, const at::Tensor& fc2, const at::Tensor& hidden) {
    at::Tensor d = at::mm(dy, fc2);
    at::silu_backward_out(d, d, hidden);
    return d;
  }
};

}  // namespace

MlpImpl::MlpImpl(std::int64_t dim) {
  fc1 = register_module("fc1", torch::nn::Linear(torch::nn::LinearOptions(dim, 4 * dim).bias(false)));
  fc2 = register_module("fc2", torch::nn::Linear(torch::nn::LinearOptions(4 * dim, dim).bias(false)));
}

torch::Tensor MlpImpl::forward(const torch::Tensor& x) { return fc2(torch::silu(fc1(x))); }

torch::Tensor MlpImpl::joined(const torch::Tensor& x, bool own_silu) {
  return JoinedMlp::apply(x, fc1->weight, fc2->weight, own_silu);
}

MlpImpl::Routed MlpImpl::routed(const torch::Tensor& x, const Runtime& runtime) {
  if (const std::string refused = refusal(x, runtime.flags); !refused.empty()) {
    runtime.parts->add({"mlp", "aten", "joined refused: " + refused});
    return {forward(x), false};
  }
  const std::string silu_refused = silu_refusal(x, runtime.flags);
  runtime.parts->add({"mlp", "joined", "served"});
  if (silu_refused.empty())
    runtime.parts->add({"silu", "cuda", "served"});
  else
    runtime.parts->add({"silu", "aten", "cuda refused: " + silu_refused});
  return {joined(x, silu_refused.empty()), true};
}

std::string MlpImpl::refusal(const torch::Tensor& x, const EffectiveFlags& flags) const {
  if (auto flag = flag_against(flags, flags.fused_mlp, "fused_mlp"); !flag.empty()) return flag;
  if (auto reason = cuda::device_refusal(x); !reason.empty()) return reason;
  const auto type = x.scalar_type();
  if (type != at::kBFloat16 && type != at::kHalf)
    return fmt::format("x is {}; served: BFloat16 and Half", c10::toString(type));
  if (fc1->weight.scalar_type() != type || fc2->weight.scalar_type() != type)
    return fmt::format("x is {}, and a weight is of another type; served: one for all", c10::toString(type));
  return "";
}

std::string MlpImpl::silu_refusal(const torch::Tensor& x, const EffectiveFlags& flags) const {
  if (auto flag = flag_against(flags, flags.fused_silu, "fused_silu"); !flag.empty()) return flag;
  return cuda::silu_product_refusal(x, fc1->weight, fc2->weight);
}

void MlpImpl::reset_parameters() {
  fc1->reset_parameters();
  fc2->reset_parameters();
}

}  // namespace nsa
