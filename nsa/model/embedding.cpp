#include "nsa/model/embedding.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nsa/cuda/rows.hpp"

namespace nsa {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The ones and zeros of a larger one would be more bytes than what they are multiplied with.
constexpr std::int64_t kMostTokens = 1024;

struct Embed : torch::autograd::Function<Embed> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& tokens) {
    context->save_for_backward({tokens});
    context->saved_data["vocab"] = weight.size(0);
    return at::embedding(weight, tokens);
  }
  static variable_list backward(AutogradContext* context, const variable_list& arrived) {
    cuda::refuse_second_derivative("embedding");
    const at::Tensor tokens = context->get_saved_variables()[0].reshape({-1, 1});
    const at::Tensor all = at::arange(context->saved_data.at("vocab").toInt(), tokens.options());
    const at::Tensor rows = arrived[0].reshape({tokens.size(0), -1});
    const at::Tensor ones = tokens.eq(all).to(rows.scalar_type());
    return {at::mm(ones.t(), rows), {}};
  }
};

std::string refusal(const at::Tensor& weight, const EffectiveFlags& flags) {
  if (auto flag = flag_against(flags, flags.fused_embedding, "fused_embedding"); !flag.empty()) return flag;
  if (auto reason = cuda::device_refusal(weight); !reason.empty()) return reason;
  if (weight.scalar_type() != at::kBFloat16 && weight.scalar_type() != at::kHalf)
    return fmt::format("the weight is {}; served: BFloat16 and Half", c10::toString(weight.scalar_type()));
  if (weight.size(0) > kMostTokens)
    return fmt::format("{} tokens; served: a vocabulary of at most {}", weight.size(0), kMostTokens);
  return "";
}

}  // namespace

torch::Tensor embed(torch::nn::Embedding& embedding, const torch::Tensor& tokens, const Runtime& runtime) {
  const std::string refused = refusal(embedding->weight, runtime.flags);
  if (refused.empty()) {
    runtime.parts->add({"embedding", "joined", "served"});
    return Embed::apply(embedding->weight, tokens);
  }
  runtime.parts->add({"embedding", "aten", "joined refused: " + refused});
  return embedding(tokens);
}

}  // namespace nsa
