// Of case rounded_once what a layer computes around attention by kernels of its own: projections with RoPE and gate,
// and the MLP. Each row of a weight has a single one, or each column: products only choose, and what is off was
// rounded, or is wrong, behind them.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>
#include <vector>

#include "harness/compare.hpp"
#include "nsa/model/rope.hpp"
#include "suites/codes.hpp"
#include "suites/parity/prepared.hpp"
#include "suites/parity/rounded_once.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;

// Of products of what is rounded, whose pieces a library may add in 16 bits, as autograd adds an input's gradients.
constexpr double kProducts = 4;
constexpr double kTau = 1.5;  // of the gate; another one than 1 is looked at, whatever is configured

at::Tensor wide(const at::Tensor& t) { return t.detach().to(at::kDouble); }
at::Tensor leaf(const at::Tensor& t) { return wide(t).requires_grad_(); }

// What the parts are given.
struct Draws {
  at::Generator generator;
  at::Device device;
  at::Tensor values(at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::TensorOptions(at::kFloat)).to(at::kBFloat16).to(device);
  }
  // For each of `outs` rows of a weight the input that it chooses, so that no two heads, groups or tiles are alike.
  at::Tensor choice(std::int64_t outs, std::int64_t inputs) {
    return at::randint(inputs, {outs}, generator, at::TensorOptions(at::kLong)).to(device);
  }
};
void choose(torch::nn::Linear& linear, const at::Tensor& choice) {
  const at::NoGradGuard no_grad;
  linear->weight.zero_();
  linear->weight.scatter_(1, choice.unsqueeze(1), 1);
}

void judge_projections(Context& context, nsa::ModelConfig model, std::int64_t S, at::Device device,
                       const ModelParts& parts, Draws& draws) {
  context.phase("projections, RoPE and gate");
  model.gate_tau = kTau;
  const std::int64_t B = kRoundedSequences, G = model.n_kv_groups, Hq = model.n_heads, h = Hq / G;
  nsa::NsaAttention layer = parts.attention(model);
  layer->to(device, at::kBFloat16);
  struct Chosen {
    torch::nn::Linear& linear;
    std::int64_t heads, width;
    at::Tensor choice;
  };
  std::vector<Chosen> chosen = {{layer->q, Hq, model.d_k, {}},    {layer->k_cmp, G, model.d_k, {}},
                                {layer->k_sel, G, model.d_k, {}}, {layer->k_win, G, model.d_k, {}},
                                {layer->v_cmp, G, model.d_v, {}}, {layer->v_sel, G, model.d_v, {}},
                                {layer->v_win, G, model.d_v, {}}};
  for (Chosen& one : chosen) {
    one.choice = draws.choice(one.heads * one.width, model.dim);
    choose(one.linear, one.choice);
  }
  std::vector<at::Tensor> weights = {layer->gate->fc1->weight, layer->gate->fc1->bias, layer->gate->fc2->weight,
                                     layer->gate->fc2->bias};
  for (const at::Tensor& weight : weights) {
    const at::NoGradGuard no_grad;
    weight.copy_(draws.values(weight.sizes()) * 0.3);
  }
  const at::Tensor x = draws.values({B, S, model.dim}).requires_grad_();
  const at::Tensor rotations = nsa::rope_rotations(S, model.d_k, model.rope_base, 1.0, {}, x.options());
  const nsa::Projected p = parts.project(layer, x, rotations);
  const std::vector<std::pair<const char*, at::Tensor>> made = {
      {"q", p.q},         {"k_cmp", p.k_cmp}, {"k_sel", p.k_sel}, {"k_win", p.k_win},
      {"v_cmp", p.v_cmp}, {"v_sel", p.v_sel}, {"v_win", p.v_win}};

  // The same in fp64.
  const at::Tensor exact_x = leaf(x), turns = rotations.to(at::kComplexDouble).view({1, S, 1, model.d_k / 2});
  std::vector<at::Tensor> exact;
  at::Tensor mean;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const Chosen& one = chosen[i];
    at::Tensor heads = exact_x.index_select(2, one.choice).unflatten(2, {one.heads, one.width});
    if (i == 0) mean = heads.unflatten(2, {G, h}).mean(3);
    if (i < 4)
      heads =
          at::view_as_real(at::view_as_complex(heads.unflatten(3, {one.width / 2, 2}).contiguous()) * turns).flatten(3);
    exact.push_back(heads);
  }
  std::vector<at::Tensor> exact_weights;
  for (const at::Tensor& weight : weights) exact_weights.push_back(leaf(weight));
  const at::Tensor hidden = at::silu(at::linear(mean, exact_weights[0], exact_weights[1]));
  const at::Tensor logits = at::linear(hidden, exact_weights[2], exact_weights[3]) / kTau;
  const at::Tensor gates = model.gate == nsa::GateActivation::softmax ? at::softmax(logits, -1) : at::sigmoid(logits);

  std::vector<at::Tensor> outputs, arrives, wide_arrives;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const auto& [name, value] = made[i];
    const std::string what = fmt::format("{} of the projections", name);
    if (i < 4)
      expect_one_rounding(context, what + ", turned", value.detach(), exact[i].detach());
    else
      expect_single(context, what, value.detach(), exact[i].detach());  // a choice of x
    outputs.push_back(value);
    arrives.push_back(draws.values(value.sizes()));
    wide_arrives.push_back(wide(arrives.back()));
  }
  expect_single(context, "the gate", p.gates, gates.detach());
  expect_one_rounding(context, "the gradient of the input of the projections",
                      gradients(outputs, {x}, arrives, /*retain_graph=*/true)[0],
                      torch::autograd::grad(exact, {exact_x}, wide_arrives, /*retain_graph=*/true)[0], kProducts);

  // What comes back from the gate alone, which beside the rest is small.
  const at::Tensor dgates = draws.values(gates.sizes()).to(at::kFloat);
  std::vector<at::Tensor> leaves = {x}, exact_leaves = {exact_x};
  leaves.insert(leaves.end(), weights.begin(), weights.end());
  exact_leaves.insert(exact_leaves.end(), exact_weights.begin(), exact_weights.end());
  const auto own = gradients({p.gates}, leaves, {dgates}),
             right = torch::autograd::grad({gates}, exact_leaves, {wide(dgates)});
  const char* const names[] = {"input", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
  for (std::size_t i = 0; i < own.size(); ++i)
    expect_one_rounding(context, fmt::format("the gradient of {} of the gate", names[i]), own[i], right[i],
                        i == 0 ? kProducts : kRoundedTerms);
}

void judge_mlp(Context& context, const nsa::ModelConfig& model, std::int64_t S, at::Device device,
               const ModelParts& parts, Draws& draws) {
  context.phase("MLP");
  nsa::Mlp mlp(model.dim);
  mlp->to(device, at::kBFloat16);
  const std::int64_t units = mlp->fc1->weight.size(0), times = units / model.dim;
  choose(mlp->fc1, draws.choice(units, model.dim));
  {
    const at::NoGradGuard no_grad;  // every unit goes to one output
    mlp->fc2->weight.copy_(at::eye(model.dim, mlp->fc2->weight.options()).repeat({1, times}));
  }
  const at::Tensor x = draws.values({kRoundedSequences, S, model.dim}).requires_grad_(), dy = draws.values(x.sizes());
  const at::Tensor y = parts.mlp(mlp, x);
  const at::Tensor exact_x = leaf(x), fc1 = leaf(mlp->fc1->weight), fc2 = leaf(mlp->fc2->weight);
  const at::Tensor exact = at::linear(at::silu(at::linear(exact_x, fc1)), fc2);
  expect_one_rounding(context, "the MLP", y.detach(), exact.detach(), kProducts);
  const auto own = gradients({y}, {x, mlp->fc1->weight, mlp->fc2->weight}, {dy}),
             right = torch::autograd::grad({exact}, {exact_x, fc1, fc2}, {wide(dy)});
  const char* const names[] = {"input", "fc1.weight", "fc2.weight"};
  for (std::size_t i = 0; i < own.size(); ++i)
    expect_one_rounding(context, fmt::format("the gradient of {} of the MLP", names[i]), own[i], right[i], kProducts);
}

}  // namespace

void judge_layer(Context& context, const nsa::ModelConfig& model, std::int64_t tokens, at::Device device,
                 const ModelParts& parts) {
  Draws draws{at::make_generator<at::CPUGeneratorImpl>(context.seed("inputs of a layer")), device};
  judge_projections(context, model, tokens, device, parts, draws);
  judge_mlp(context, model, tokens, device, parts, draws);
}

}  // namespace suites::parity_cases
