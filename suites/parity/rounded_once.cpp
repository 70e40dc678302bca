// Parts of the model that compute in fp32 and round once, alone and in bf16: in a whole step their second rounding
// drowns in those of the products around them.
#include "suites/parity/rounded_once.hpp"
#include "suites/parity/prepared.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>

#include "harness/compare.hpp"
#include "nsa/call.hpp"
#include "nsa/dispatch.hpp"
#include "nsa/model/norm.hpp"
#include "nsa/model/rope.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/op_case.hpp"
#include "suites/parity/cases.hpp"
#include "suites/ways.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;

// Times the error of one rounding. A norm that rounds its mean and its products makes 1.7 times that of one rounding
// and more; one that does not, 1.0.
constexpr double kMost = 1.3;
constexpr double kMostOfGradients = 2.2;  // with an output kept in 16 bits, and sums over chunks of queries: 1.75
constexpr double kOnlyRounded = 6;        // what is off by more computes something else
constexpr std::int64_t kBatch = 2, kTokens = 256;

void expect_one_rounding(Context& context, const std::string& what, const at::Tensor& value, const at::Tensor& exact,
                         double most = kMost) {
  const double once = rms(exact.to(at::kBFloat16).to(at::kDouble) - exact), own = rms(value.to(at::kDouble) - exact),
               ratio = own / once;
  context.metric("error of " + what, ratio, "of one rounding");
  harness::Json evidence = {{"part", what},
                            {"ratio", fmt::format("{:.2f}", ratio)},
                            {"rms_error", reports::number(own)},
                            {"rms_of_one_rounding", reports::number(once)}};
  if (harness::at_most(ratio, kOnlyRounded)) evidence["rounded"] = what;
  context.expect(what + " is rounded once", harness::at_most(ratio, most),
                 fmt::format("{} in bf16 is off by {:.3g} RMS, {:.2f} times what one rounding costs; allowed {}", what,
                             own, ratio, most),
                 codes::kOutputBudget, evidence);
}

// On the CPU attention's backward pass works in fp32 between its 16-bit inputs and gradients; it keeps its output in 16
// bits. (Tensor cores take probabilities in 16 bits.)
void judge_gradients(Context& context, const nsa::ModelConfig& model, const nsa::Ops& ops) {
  const nsa::Ops reference = nsa::backend_ops(nsa::Backend::reference);
  oracle::OpShape shape = oracle::parity_shape(model.nsa);
  shape.B = 1;
  shape.G = std::min<std::int64_t>(model.n_kv_groups, 2);
  shape.Hq = shape.G * std::min<std::int64_t>(model.n_heads / model.n_kv_groups, 4);
  shape.Dk = model.d_k;  // equal widths go another way than different ones
  shape.Dv = model.d_v;
  for (const nsa::Op op : {nsa::Op::attend_compressed, nsa::Op::attend_selected, nsa::Op::attend_window}) {
    context.phase(fmt::format("gradients of {}", nsa::to_string(op)));
    const oracle::OpCase c = make_op_case(op, shape, at::kBFloat16, at::kCPU, context.seed("inputs"));
    const oracle::Evaluation own = evaluate(c, ops, {at::kBFloat16, true}),
                             exact = evaluate(c, reference, {at::kDouble, true});
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      const std::string what = fmt::format("the gradient of {} of {}", c.input_names[i], nsa::to_string(op));
      const bool arrives = own.gradients[i].defined();
      context.expect(what + " arrives", arrives, what + " in bf16 does not arrive", codes::kGraphBreak,
                     {{"op", c.name()}, {"input", c.input_names[i]}});
      if (arrives) expect_one_rounding(context, what, own.gradients[i], exact.gradients[i], kMostOfGradients);
    }
  }
}

}  // namespace

ModelParts parts_of_product(nsa::Ops ops, const nsa::EffectiveFlags& flags) {
  return {.norm =
              [flags](const at::Tensor& x, const at::Tensor& weight) {
                nsa::RmsNorm norm(weight.size(0));
                norm->to(weight.device(), weight.scalar_type());
                {
                  const at::NoGradGuard no_grad;
                  norm->weight.copy_(weight);
                }
                return norm->after(x, {}, nsa::Runtime{.flags = flags, .ops = {}, .observe = {}}).y;
              },
          .rotate = nsa::rotate,
          .ops = std::move(ops)};
}

void judge_rounding(Context& context, const nsa::ModelConfig& model, at::Device device, const ModelParts& parts) {
  constexpr double kEpsilon = 1e-6;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("inputs"));
  const auto draw = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::TensorOptions(at::kDouble)).to(at::kBFloat16).to(device);
  };

  context.phase("norm");
  const at::Tensor x = draw({kBatch, kTokens, model.dim}).requires_grad_(), weight = draw({model.dim}),
                   upstream = draw({kBatch, kTokens, model.dim});
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
  const at::Tensor q = draw({kBatch, kTokens, model.n_heads, model.d_k});
  const at::Tensor pairs = at::view_as_complex(q.to(at::kDouble).unflatten(3, {model.d_k / 2, 2}).contiguous());
  const at::Tensor turned =
      at::view_as_real(pairs * rotations.to(at::kComplexDouble).view({1, kTokens, 1, model.d_k / 2})).flatten(3);
  expect_one_rounding(context, "RoPE", parts.rotate(q, rotations), turned);

  context.phase("sum of the branches");
  const std::int64_t G = model.n_kv_groups, h = model.n_heads / G;
  const at::Tensor gates = draw({kBatch, kTokens, G, 3}).to(at::kFloat).sigmoid();  // fp32, as the model has them
  const std::array<at::Tensor, 3> outputs = {draw({kBatch, kTokens, model.n_heads, model.d_v}),
                                             draw({kBatch, kTokens, model.n_heads, model.d_v}),
                                             draw({kBatch, kTokens, model.n_heads, model.d_v})};
  at::Tensor sum = at::zeros_like(outputs[0], at::kDouble);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor gate = gates.select(3, static_cast<std::int64_t>(i)).to(at::kDouble).repeat_interleave(h, 2);
    sum += outputs[i].to(at::kDouble) * gate.unsqueeze(3);
  }
  expect_one_rounding(context, "the gated sum of the branches",
                      parts.ops.combine({gates, outputs[0], outputs[1], outputs[2]}), sum);

  context.phase("compression");
  const nsa::Geometry& g = model.nsa;
  const auto pooled_by_hand = [&](const at::Tensor& rows) { return rows.to(at::kDouble).unfold(1, g.l, g.d).mean(-1); };
  const at::Tensor k = draw({kBatch, kTokens + g.l, G, model.d_k}), v = draw({kBatch, kTokens + g.l, G, model.d_v});
  const nsa::Compressed pooled = parts.ops.compress({k, v, g, {}, {}, {}});
  expect_one_rounding(context, "the mean of a block's keys", pooled.k, pooled_by_hand(k));
  expect_one_rounding(context, "the mean of a block's values", pooled.v, pooled_by_hand(v));
  if (device.is_cpu()) judge_gradients(context, model, parts.ops);
}

void rounded_once(Context& context, const Subject& subject) {
  nsa::ModelConfig model = subject.config(context).model;
  model.phi = nsa::Phi::avg;  // what phi = mlp computes are products of matrices
  const at::Device device = device_of(context);
  const nsa::Call call = nsa::call_of(model, kBatch, kTokens, nsa::Precision::bf16, device, /*training=*/true);
  // On the CPU sdpa as it is by itself: a selection by a mask, which a flag may ask for, adds the gradients of its keys
  // up in 16 bits.
  const nsa::EffectiveFlags flags = device.is_cpu() ? way_named("sdpa").flags() : subject.flags();
  judge_rounding(context, model, device, parts_of_product(subject.ops(flags, call), flags));
}

}  // namespace suites::parity_cases
