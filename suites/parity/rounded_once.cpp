// Parts of the model that compute in fp32 and round once, alone and in bf16: in a whole step their second rounding
// drowns in those of the products around them.
#include "suites/parity/rounded_once.hpp"
#include "suites/parity/prepared.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "harness/compare.hpp"
#include "nsa/call.hpp"
#include "nsa/dispatch.hpp"
#include "nsa/model/rope.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/op_case.hpp"
#include "suites/parity/cases.hpp"
#include "suites/ways.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;

constexpr double kMostOfGradients = 2.2;  // with an output kept in 16 bits, and sums over chunks of queries: 1.75
constexpr double kOnlyRounded = 6;        // what is off by more computes something else
constexpr std::int64_t kBatch = kRoundedSequences, kTokens = 256;
constexpr std::int64_t kAwkwardTokens = kTokens - 3;  // no whole number of rows for any tile

}  // namespace

std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& arrives, bool retain_graph) {
  std::vector<at::Tensor> of, by;  // autograd refuses what is cut off altogether
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].requires_grad()) of.push_back(outputs[i]), by.push_back(arrives[i]);
  if (of.empty()) return std::vector<at::Tensor>(inputs.size());
  return torch::autograd::grad(of, inputs, by, retain_graph, /*create_graph=*/false, /*allow_unused=*/true);
}

namespace {

bool is_there(Context& context, const std::string& what, const at::Tensor& value) {
  context.expect(what + " arrives", value.defined(), what + " does not arrive: it is cut off from the graph",
                 codes::kGraphBreak, {{"part", what}, {"cut_off", what}});
  return value.defined();
}

}  // namespace

void expect_one_rounding(Context& context, const std::string& what, const at::Tensor& value, const at::Tensor& exact,
                         double most) {
  if (!is_there(context, what, value)) return;
  const double once = rms(exact.to(at::kBFloat16).to(at::kDouble) - exact), own = rms(value.to(at::kDouble) - exact),
               ratio = own == 0 ? 0 : own / once;  // what rounds nothing costs nothing: means of blocks side by side
  context.metric("error of " + what, ratio, "of one rounding");
  harness::Json evidence = {{"part", what},
                            {"ratio", fmt::format("{:.2f}", ratio)},
                            {"rms_error", reports::number(own)},
                            {"rms_of_one_rounding", reports::number(once)}};
  evidence[harness::at_most(ratio, kOnlyRounded) ? "rounded" : "wrong"] = what;
  context.expect(what + " is rounded once", harness::at_most(ratio, most),
                 fmt::format("{} in bf16 is off by {:.3g} RMS, {:.2f} times what one rounding costs; allowed {}", what,
                             own, ratio, most),
                 codes::kOutputBudget, evidence);
}

void expect_single(Context& context, const std::string& what, const at::Tensor& value, const at::Tensor& exact) {
  constexpr double kMost = 1e-5;
  if (!is_there(context, what, value)) return;
  const double error = rms(value.to(at::kDouble) - exact) / rms(exact);
  context.metric("error of " + what, error, "of its RMS");
  context.expect(what + " is right to fp32", harness::at_most(error, kMost),
                 fmt::format("{} is off by {:.3g} of its RMS; allowed {}", what, error, kMost), codes::kOutputBudget,
                 {{"part", what}, {"in_fp32", what}, {"error", reports::number(error)}});
}

namespace {

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
  const auto runtime = std::make_shared<nsa::Runtime>(nsa::Runtime{.flags = flags, .ops = {}, .observe = {}});
  return {
      .norm =
          [runtime](const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight) {
            nsa::RmsNorm norm(weight.size(0));
            norm->weight = weight;
            return norm->after(x, delta, *runtime);
          },
      .rotate = nsa::rotate,
      .ops = std::move(ops),
      .attention = [runtime](const nsa::ModelConfig& model) { return nsa::NsaAttention(model, /*layer=*/0, runtime); },
      .project = [](nsa::NsaAttention& layer, const at::Tensor& x,
                    const at::Tensor& rotations) { return layer->project(x, rotations); },
      .mlp = [runtime](nsa::Mlp& mlp, const at::Tensor& x) { return mlp->routed(x, *runtime).y; }};
}

namespace {

// Alone, of rows as small as its epsilon, and behind the residual's addition, whose sum goes on beside it.
enum class NormOf { rows, small_rows, a_sum };

void judge_norm(Context& context, const ModelParts& parts, const std::function<at::Tensor(at::IntArrayRef)>& draw,
                std::int64_t width, NormOf of) {
  constexpr double kEpsilon = 1e-6, kSmall = 0x1p-10;
  const bool behind_a_sum = of == NormOf::a_sum;
  const std::string name = of == NormOf::rows         ? "RMSNorm"
                           : of == NormOf::small_rows ? "RMSNorm of small rows"
                                                      : "RMSNorm behind a sum";
  const std::vector<std::int64_t> sizes = {kBatch, kAwkwardTokens, width};
  const at::Tensor x = (of == NormOf::small_rows ? draw(sizes) * kSmall : draw(sizes)).requires_grad_(),
                   weight = draw({width}).requires_grad_(), dy = draw(sizes), dsum = draw(sizes),
                   delta = behind_a_sum ? draw(sizes) : at::Tensor();
  const nsa::Normed made = parts.norm(x, delta, weight);
  const at::Tensor wide = x.detach().to(at::kDouble).requires_grad_(),
                   wide_weight = weight.detach().to(at::kDouble).requires_grad_();
  at::Tensor sum = wide;
  if (behind_a_sum) {
    // The norm is of what is stored.
    const at::Tensor stored = (x.detach().to(at::kDouble) + delta.to(at::kDouble)).to(at::kBFloat16).to(at::kDouble);
    expect_one_rounding(context, name + ", the sum", made.stream.detach(), (wide + delta.to(at::kDouble)).detach());
    sum = wide + (stored - wide.detach());
  }
  const at::Tensor exact = sum * at::rsqrt(sum.square().mean({-1}, /*keepdim=*/true) + kEpsilon) * wide_weight;
  expect_one_rounding(context, name, made.y.detach(), exact.detach());
  std::vector<at::Tensor> outputs = {made.y}, exact_outputs = {exact}, arrives = {dy},
                          wide_arrives = {dy.to(at::kDouble)};
  if (behind_a_sum) {
    outputs.push_back(made.stream), exact_outputs.push_back(sum);
    arrives.push_back(dsum), wide_arrives.push_back(dsum.to(at::kDouble));
  }
  const auto own = gradients(outputs, {x, weight}, arrives),
             right = torch::autograd::grad(exact_outputs, {wide, wide_weight}, wide_arrives);
  expect_one_rounding(context, "the gradient of the input of " + name, own[0], right[0],
                      behind_a_sum ? kRoundedTerms : kOneRounding);
  expect_one_rounding(context, "the gradient of the weight of " + name, own[1], right[1]);
}

}  // namespace

void judge_rounding(Context& context, const nsa::ModelConfig& model, std::int64_t tokens, at::Device device,
                    const ModelParts& parts) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("inputs"));
  const auto draw = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::TensorOptions(at::kDouble)).to(at::kBFloat16).to(device);
  };

  context.phase("norm");
  for (const NormOf of : {NormOf::rows, NormOf::small_rows, NormOf::a_sum})
    judge_norm(context, parts, draw, model.dim, of);

  context.phase("RoPE");
  const at::Tensor rotations =
      nsa::rope_rotations(kTokens, model.d_k, model.rope_base, 1.0, {}, at::TensorOptions(device).dtype(at::kBFloat16));
  const at::Tensor q = draw({kBatch, kTokens, model.n_heads, model.d_k});
  const at::Tensor pairs = at::view_as_complex(q.to(at::kDouble).unflatten(3, {model.d_k / 2, 2}).contiguous());
  const at::Tensor turned =
      at::view_as_real(pairs * rotations.to(at::kComplexDouble).view({1, kTokens, 1, model.d_k / 2})).flatten(3);
  expect_one_rounding(context, "RoPE", parts.rotate(q, rotations), turned);

  context.phase("sum of the branches");
  const std::int64_t G = model.n_kv_groups, h = model.n_heads / G;
  // fp32, as the model has them.
  std::vector<at::Tensor> leaves = {draw({kBatch, kTokens, G, 3}).to(at::kFloat).sigmoid()};
  for (int branch = 0; branch < 3; ++branch) leaves.push_back(draw({kBatch, kTokens, model.n_heads, model.d_v}));
  std::vector<at::Tensor> wide_leaves;
  for (at::Tensor& leaf : leaves)
    wide_leaves.push_back(leaf.requires_grad_().detach().to(at::kDouble).requires_grad_());
  at::Tensor sum;
  for (std::size_t i = 0; i < 3; ++i) {
    const at::Tensor gate = wide_leaves[0].select(3, static_cast<std::int64_t>(i)).repeat_interleave(h, 2);
    const at::Tensor share = wide_leaves[i + 1] * gate.unsqueeze(3);
    sum = sum.defined() ? sum + share : share;
  }
  const at::Tensor combined = parts.ops.combine({leaves[0], leaves[1], leaves[2], leaves[3]}), dsum = draw(sum.sizes());
  expect_one_rounding(context, "the gated sum of the branches", combined.detach(), sum.detach());
  const auto of_sum = gradients({combined}, leaves, {dsum}),
             right_of_sum = torch::autograd::grad({sum}, wide_leaves, {dsum.to(at::kDouble)});
  expect_single(context, "the gradient of the gates", of_sum[0], right_of_sum[0]);
  for (std::size_t i = 1; i <= 3; ++i)
    expect_one_rounding(context, fmt::format("the gradient of branch {} of the gated sum", i), of_sum[i],
                        right_of_sum[i]);

  context.phase("compression");
  const nsa::Geometry& g = model.nsa;
  const auto pooled_by_hand = [&](const at::Tensor& rows) { return rows.to(at::kDouble).unfold(1, g.l, g.d).mean(-1); };
  const at::Tensor k = draw({kBatch, kTokens + g.l, G, model.d_k}).requires_grad_(),
                   v = draw({kBatch, kTokens + g.l, G, model.d_v}).requires_grad_();
  const nsa::Compressed pooled = parts.ops.compress({k, v, g, {}, {}, {}});
  for (const auto& [name, rows, mean] : {std::tuple("keys", k, pooled.k), std::tuple("values", v, pooled.v)}) {
    const at::Tensor exact_rows = rows.detach().to(at::kDouble).requires_grad_(), exact = pooled_by_hand(exact_rows),
                     arrives = draw(mean.sizes());
    expect_one_rounding(context, fmt::format("the mean of a block's {}", name), mean.detach(), exact.detach());
    expect_one_rounding(context, fmt::format("the gradient of a block's {}", name),
                        gradients({mean}, {rows}, {arrives}, /*retain_graph=*/true)[0],
                        torch::autograd::grad({exact}, {exact_rows}, {arrives.to(at::kDouble)})[0], kRoundedTerms);
  }
  judge_layer(context, model, tokens, device, parts);
  if (device.is_cpu()) judge_gradients(context, model, parts.ops);
}

void rounded_once(Context& context, const Subject& subject) {
  const nsa::Config config = subject.config(context);
  nsa::ModelConfig model = config.model;
  model.phi = nsa::Phi::avg;  // what phi = mlp computes are products of matrices
  const at::Device device = device_of(context);
  constexpr std::int64_t kNarrowest = 32;  // that our own kernels serve
  if (!device.is_cpu() && model.d_k < kNarrowest) model.d_k = model.d_v = kNarrowest;
  const nsa::Call call = nsa::call_of(model, kBatch, kTokens, nsa::Precision::bf16, device, /*training=*/true);
  // On the CPU sdpa as it is by itself: a selection by a mask, which a flag may ask for, adds the gradients of its keys
  // up in 16 bits.
  nsa::EffectiveFlags flags = device.is_cpu() ? way_named("sdpa").flags() : subject.flags();
  // What these cut off on purpose is to be seen here.
  flags.forced_branch = nsa::ForcedBranch::none;
  flags.uniform_gate = flags.stopgrad_gates = false;
  // On a GPU a layer's parts get about as many rows as in a training step, by which kernels choose their way, while
  // they are few in fp64.
  const std::int64_t most_values = device.is_cpu() ? std::int64_t{1} << 20 : std::int64_t{8192} * 768,
                     width = std::max(model.dim, model.n_heads * std::max(model.d_k, model.d_v)),
                     trained = device.is_cpu() ? kTokens : config.train.batch_size * config.train.seq_len / kBatch,
                     tokens = std::max<std::int64_t>(std::min(std::max(trained, kTokens), most_values / width), 16) - 3;
  judge_rounding(context, model, tokens, device, parts_of_product(subject.ops(flags, call), flags));
}

}  // namespace suites::parity_cases
