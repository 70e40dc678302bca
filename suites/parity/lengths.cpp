// Attention as it trains, length by length: the model's own shape, the flags' own way, the choice of blocks its own.
// Values and gradients against fp64, tile by tile. What is wrong at one length, in one head or by 2 % stands here.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "nsa/reference/reference.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/tiles.hpp"
#include "suites/parity/cases.hpp"
#include "suites/probes/lengths.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using Tensors = std::vector<at::Tensor>;

const std::vector<std::string> kInputs = {"q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates"};
const std::vector<std::string> kOutputs = {"cmp.o", "sel.o", "win.o"};

// The products of one group and length in fp64, of which the reference keeps a dozen.
constexpr std::int64_t kMostScores = std::int64_t{1} << 28;

struct Problem {
  const nsa::ModelConfig& model;
  at::Tensor upstream;
  Tensors inputs;  // kInputs; k_cmp and v_cmp are blocks already

  [[nodiscard]] nsa::AttendArgs args(const Tensors& in) const {
    return {in[0], {in[1], in[2]}, in[3], in[4], in[5], in[6], in[7], model.nsa, {}};
  }
};

Problem make_problem(const nsa::ModelConfig& m, std::int64_t S, at::ScalarType dtype, at::Device device,
                     std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto draw = [&](std::int64_t rows, std::int64_t heads, std::int64_t width) {
    return at::randn({1, rows, heads, width}, generator, at::TensorOptions(at::kDouble)).to(dtype).to(device);
  };
  const std::int64_t G = m.n_kv_groups, blocks = nsa::compressed_blocks(m.nsa, S);
  Problem p{m, draw(S, m.n_heads, m.d_v), {draw(S, m.n_heads, m.d_k)}};
  for (const std::int64_t rows : {blocks, S, S}) {
    p.inputs.push_back(draw(rows, G, m.d_k));
    p.inputs.push_back(draw(rows, G, m.d_v));
  }
  p.inputs.push_back(at::softmax(draw(S, G, 3).to(nsa::accumulation_type(dtype)), -1));
  return p;
}

struct Result {
  at::Tensor o, blocks;
  std::map<std::string, at::Tensor> stages;  // kOutputs
  Tensors gradients;                         // kInputs
};

// As a training step runs it. `watched` also keeps the stages.
Result run(const Problem& p, const nsa::Ops& ops, at::ScalarType dtype, const std::optional<at::Tensor>& blocks,
           bool watched) {
  const at::AutoGradMode gradients(true);
  Tensors leaves;
  for (const at::Tensor& t : p.inputs) {
    const auto type = dtype == at::kDouble ? at::kDouble : t.scalar_type();
    leaves.push_back(t.to(type).detach().clone().requires_grad_());
  }
  Result result;
  nsa::AttendArgs args = p.args(leaves);
  args.blocks = blocks;
  if (watched)
    args.observe = [&](std::string_view stage, const at::Tensor& value) {
      if (stage == "blocks")
        result.blocks = value;
      else
        result.stages[std::string(stage)] = value.detach();
    };
  const at::Tensor o = ops.attend(args);
  result.o = o.detach();
  result.gradients = torch::autograd::grad({o}, leaves, {p.upstream.to(o.scalar_type())}, std::nullopt, false,
                                           /*allow_unused=*/true);
  for (std::size_t i = 0; i < leaves.size(); ++i)  // at these lengths there may be no block at all
    if (!result.gradients[i].defined() && leaves[i].numel() == 0) result.gradients[i] = at::zeros_like(leaves[i]);
  return result;
}

// Query heads [first, first + count) of inputs and upstream, and their groups: heads do not see one another.
Problem group_of(const Problem& p, std::int64_t group) {
  const std::int64_t h = p.model.n_heads / p.model.n_kv_groups;
  Problem one{p.model, p.upstream.narrow(2, group * h, h), {p.inputs[0].narrow(2, group * h, h)}};
  for (std::size_t i = 1; i < p.inputs.size(); ++i) one.inputs.push_back(p.inputs[i].narrow(2, group, 1));
  return one;
}

// The reference group by group, so that its [S,S] products stay small.
Result reference(Context& context, const Problem& p, const at::Tensor& blocks, at::ScalarType dtype) {
  std::vector<Result> groups;
  for (std::int64_t group = 0; group < p.model.n_kv_groups; ++group) {
    groups.push_back(run(group_of(p, group), nsa::reference::ops(), dtype, blocks.narrow(2, group, 1), true));
    context.progress();
  }
  const auto joined = [&](const auto& of) {
    Tensors parts;
    for (const Result& group : groups) parts.push_back(of(group));
    return at::cat(parts, 2);
  };
  Result all;
  all.o = joined([](const Result& r) { return r.o; });
  for (const std::string& stage : kOutputs)
    all.stages[stage] = joined([&](const Result& r) { return r.stages.at(stage); });
  for (std::size_t i = 0; i < kInputs.size(); ++i)
    all.gradients.push_back(joined([&](const Result& r) { return r.gradients[i]; }));
  return all;
}

}  // namespace

void attention_at(Context& context, const Subject& subject, const AttentionPoint& point) {
  const nsa::ModelConfig model = subject.config(context).model;
  const auto [S, precision] = point;
  const at::ScalarType dtype = scalar_type(precision);
  if (model.n_heads / model.n_kv_groups * S * S > kMostScores)
    throw harness::Skipped{"too_long",
                           fmt::format("the fp64 reference of {} tokens and {} heads a group would hold more "
                                       "than {} scores",
                                       S, model.n_heads / model.n_kv_groups, kMostScores)};
  const nsa::EffectiveFlags flags = subject.flags();
  const nsa::Call call = make_call(model, 1, S, precision, device_of(context), /*training=*/true);
  const nsa::Ops ops = subject.ops(flags, call);
  const nsa::Choice way = nsa::route(flags, call)[nsa::Op::attend];
  context.fact("attend", fmt::format("{}/{} ({})", nsa::to_string(way.backend),
                                     ops.way == nsa::AttendWay::in_one ? "in_one" : "in_parts", way.why));

  const Problem p = make_problem(model, S, dtype, device_of(context), context.seed("inputs"));
  context.phase("as it trains");
  const Result got = run(p, ops, dtype, std::nullopt, false);
  context.phase("watched");
  const Result watched = run(p, ops, dtype, std::nullopt, true);
  context.expect("watching attention changes no bit of it", at::equal(got.o, watched.o),
                 fmt::format("attend at S = {}: the output is another one when it is watched", S), codes::kIdentity,
                 {{"S", S}});
  context.phase("reference in fp64");
  const Result exact = reference(context, p, watched.blocks, at::kDouble);
  context.phase("reference in the backend's dtype");
  const Result naive = reference(context, p, watched.blocks, dtype);

  const std::string name = fmt::format("attend[S={}]", S);
  for (const std::string& stage : kOutputs)
    (void)expect_good(
        context, oracle::judge_tiles({watched.stages.at(stage), exact.stages.at(stage), naive.stages.at(stage)}, dtype),
        {name, stage, false});
  (void)expect_good(context, oracle::judge_tiles({got.o, exact.o, naive.o}, dtype), {name, "o", false});
  for (std::size_t i = 0; i < kInputs.size(); ++i)
    (void)expect_good(context, oracle::judge_tiles({got.gradients[i], exact.gradients[i], naive.gradients[i]}, dtype),
                      {name, kInputs[i], true});
}

void attention_at_boundaries(Context& context, const Subject& subject) {
  for (const std::int64_t S : boundary_lengths(subject.config(context).model.nsa, {}))
    attention_at(context, subject, {S, context.cuda() ? nsa::Precision::bf16 : nsa::Precision::fp32});
}

}  // namespace suites::parity_cases
