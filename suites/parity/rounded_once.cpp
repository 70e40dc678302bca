// Parts of the model that compute in fp32 and round once, alone and in bf16: in a whole step their second rounding
// drowns in those of the products around them.
#include "suites/parity/rounded_once.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "harness/compare.hpp"
#include "nsa/model/norm.hpp"
#include "nsa/model/rope.hpp"
#include "suites/codes.hpp"
#include "suites/parity/cases.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;

// Times the error of one rounding. A norm that rounds its mean and its products makes 1.7 times that of one rounding
// and more; one that does not, 1.0.
constexpr double kMost = 1.3;
constexpr double kOnlyRounded = 6;  // what is off by more computes something else

double rms(const at::Tensor& t) { return t.to(at::kDouble).square().mean().sqrt().item<double>(); }

void expect_one_rounding(Context& context, const std::string& what, const at::Tensor& value, const at::Tensor& exact) {
  const double once = rms(exact.to(at::kBFloat16).to(at::kDouble) - exact), own = rms(value.to(at::kDouble) - exact),
               ratio = own / once;
  context.metric("error of " + what, ratio, "of one rounding");
  harness::Json evidence = {{"part", what},
                            {"ratio", fmt::format("{:.2f}", ratio)},
                            {"rms_error", reports::number(own)},
                            {"rms_of_one_rounding", reports::number(once)}};
  if (harness::at_most(ratio, kOnlyRounded)) evidence["rounded"] = what;
  context.expect(what + " is rounded once", harness::at_most(ratio, kMost),
                 fmt::format("{} in bf16 is off by {:.3g} RMS, {:.2f} times what one rounding costs; allowed {}", what,
                             own, ratio, kMost),
                 codes::kOutputBudget, evidence);
}

}  // namespace

ModelParts parts_of_product() {
  return {.norm =
              [](const at::Tensor& x, const at::Tensor& weight) {
                nsa::RmsNorm norm(weight.size(0));
                norm->to(weight.device(), weight.scalar_type());
                {
                  const at::NoGradGuard no_grad;
                  norm->weight.copy_(weight);
                }
                return norm->forward(x);
              },
          .rotate = nsa::rotate};
}

void judge_rounding(Context& context, const nsa::ModelConfig& model, at::Device device, const ModelParts& parts) {
  constexpr std::int64_t kTokens = 256;
  constexpr double kEpsilon = 1e-6;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("inputs"));
  const auto draw = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::TensorOptions(at::kDouble)).to(at::kBFloat16).to(device);
  };

  context.phase("norm");
  const at::Tensor x = draw({2, kTokens, model.dim}).requires_grad_(), weight = draw({model.dim}),
                   upstream = draw({2, kTokens, model.dim});
  const at::Tensor y = parts.norm(x, weight);
  const at::Tensor dx = torch::autograd::grad({y}, {x}, {upstream})[0];
  const at::Tensor wide = x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor exact =
      wide * at::rsqrt(wide.square().mean({-1}, /*keepdim=*/true) + kEpsilon) * weight.to(at::kDouble);
  expect_one_rounding(context, "RMSNorm", y.detach(), exact.detach());
  expect_one_rounding(context, "the gradient of RMSNorm's input", dx,
                      torch::autograd::grad({exact}, {wide}, {upstream.to(at::kDouble)})[0]);

  context.phase("RoPE");
  const at::Tensor rotations = nsa::rope_rotations(kTokens, model.d_k, model.rope_base, 1.0, {}, weight.options());
  const at::Tensor q = draw({2, kTokens, model.n_heads, model.d_k});
  const at::Tensor pairs = at::view_as_complex(q.to(at::kDouble).unflatten(3, {model.d_k / 2, 2}).contiguous());
  const at::Tensor turned =
      at::view_as_real(pairs * rotations.to(at::kComplexDouble).view({1, kTokens, 1, model.d_k / 2})).flatten(3);
  expect_one_rounding(context, "RoPE", parts.rotate(q, rotations), turned);
}

void rounded_once(Context& context, const Subject& subject) {
  judge_rounding(context, subject.config(context).model, device_of(context), parts_of_product());
}

}  // namespace suites::parity_cases
