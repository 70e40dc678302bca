// Relations that hold whatever the numbers are. No oracle is involved, so they catch what an oracle that shares a
// mistake with the backend would let pass. All in fp64, where "equal" can mean almost every bit.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "suites/codes.hpp"
#include "suites/oracle/compare.hpp"
#include "suites/parity/cases.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using nsa::Op;
using oracle::OpCase;
using oracle::OpShape;

constexpr double kUlps = 1e4;  // 2e-12 relative

struct Bench {
  Context& context;
  const Subject& subject;

  [[nodiscard]] static OpShape shape() {
    OpShape s = oracle::parity_shape({.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32});
    return s;
  }
  [[nodiscard]] OpCase make(Op op, const OpShape& s) const {
    return make_op_case(op, s, at::kDouble, device_of(context), context.seed("inputs"));
  }
  [[nodiscard]] at::Tensor run(const std::string& way, const OpCase& c) const {
    return c.call(ops_of(subject, way_named(way), c.shape, c.op, at::kDouble, device_of(context)), c.inputs)[0];
  }
  // The ways to compute an op in fp64, on any device. Those without gradients differ by a workspace that is used again,
  // which no identity is about: the cases `op` run them twice.
  [[nodiscard]] static std::vector<std::string> ways_of(Op op) {
    std::vector<std::string> names;
    for (const Way& way : ways())
      if (!way.needs_cuda && way.gradients && std::ranges::count(way.ops, op) > 0) names.push_back(way.name);
    return names;
  }
  void expect_near(const std::string& what, const at::Tensor& value, const at::Tensor& wanted) const {
    const oracle::Verdict verdict = oracle::near(value, wanted, kUlps);
    harness::Json evidence = verdict.evidence();
    evidence["identity"] = what;
    context.expect(what, verdict.good(),
                   fmt::format("{}: off by {:.3g} at [{}] ({} instead of {}); allowed {:.3g}", what, verdict.error,
                               fmt::join(verdict.index, ", "), verdict.value, verdict.wanted, verdict.bound),
                   codes::kIdentity, evidence);
  }
};

// Full causal attention, written out.
at::Tensor causal_attention(const OpCase& c) {
  const std::int64_t S = c.shape.S, h = c.shape.Hq / c.shape.G;
  const at::Tensor q = c.inputs[0].transpose(1, 2);                          // [B,Hq,S,Dk]
  const at::Tensor k = c.inputs[1].repeat_interleave(h, 2).transpose(1, 2);  // [B,Hq,S,Dk]
  const at::Tensor v = c.inputs[2].repeat_interleave(h, 2).transpose(1, 2);  // [B,Hq,S,Dv]
  const at::Tensor future = at::ones({S, S}, c.inputs[0].options().dtype(at::kBool)).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(c.shape.Dk));
  const at::Tensor p = at::softmax(scores.masked_fill(future, -std::numeric_limits<double>::infinity()), -1);
  return at::matmul(p, v).transpose(1, 2);
}

void all_blocks_selected(const Bench& bench) {
  OpShape s = Bench::shape();
  s.geometry.n_sel = nsa::selection_blocks(s.geometry, s.S);
  OpCase c = bench.make(Op::attend_selected, s);
  const at::Tensor number = at::arange(s.geometry.n_sel, c.blocks.options());
  const at::Tensor current = at::arange(s.S, c.blocks.options()).floor_divide(s.geometry.l_sel).view({1, s.S, 1, 1});
  c.blocks =
      at::where(number.le(current), number, at::full({}, -1, c.blocks.options())).expand_as(c.blocks).contiguous();
  for (const std::string& way : Bench::ways_of(c.op)) {
    bench.expect_near("all blocks selected = full causal attention, " + way, bench.run(way, c), causal_attention(c));
  }
}

void window_covers_all(const Bench& bench) {
  OpShape s = Bench::shape();
  for (const std::int64_t w : {s.S, s.S + 9}) {
    s.geometry.w = w;
    const OpCase c = bench.make(Op::attend_window, s);
    for (const std::string& way : Bench::ways_of(c.op)) {
      bench.expect_near(fmt::format("w {} S = full causal attention, {}", w == s.S ? "=" : ">", way), bench.run(way, c),
                        causal_attention(c));
    }
  }
}

// The width of the window, exactly: with equal scores the output is the mean of the w values.
void window_width(const Bench& bench) {
  OpCase c = bench.make(Op::attend_window, Bench::shape());
  c.inputs[0].zero_();
  std::vector<at::Tensor> means;
  for (std::int64_t t = 0; t < c.shape.S; ++t) {
    means.push_back(c.inputs[2].slice(1, std::max<std::int64_t>(0, t - c.shape.geometry.w + 1), t + 1).mean(1));
  }
  const at::Tensor wanted = at::stack(means, 1).repeat_interleave(c.shape.Hq / c.shape.G, 2);
  for (const std::string& way : Bench::ways_of(c.op)) {
    bench.expect_near("equal scores give the mean of exactly w values, " + way, bench.run(way, c), wanted);
  }
}

void gate_one_hot(const Bench& bench) {
  for (std::int64_t branch = 0; branch < 3; ++branch) {
    OpCase c = bench.make(Op::combine, Bench::shape());
    c.inputs[0].zero_().select(3, branch).fill_(1);
    for (const std::string& way : Bench::ways_of(c.op)) {
      bench.expect_near(
          fmt::format("gate one-hot on {} = that branch, {}", c.input_names[static_cast<std::size_t>(branch) + 1], way),
          bench.run(way, c), c.inputs[static_cast<std::size_t>(branch) + 1]);
    }
  }
}

void batch_of_two(const Bench& bench) {
  for (const Op op : nsa::kAllOps) {
    const OpCase c = bench.make(op, Bench::shape());
    for (const std::string& way : Bench::ways_of(op)) {
      std::vector<at::Tensor> alone;
      for (std::int64_t b = 0; b < c.shape.B; ++b) {
        OpCase one = c;
        one.shape.B = 1;
        for (at::Tensor& input : one.inputs) input = input.slice(0, b, b + 1);
        if (one.blocks.defined()) one.blocks = one.blocks.slice(0, b, b + 1);
        alone.push_back(bench.run(way, one));
      }
      bench.expect_near(fmt::format("{}: a batch of two = two batches of one, {}", c.name(), way),
                        bench.run(way, c).to(at::kDouble), at::cat(alone).to(at::kDouble));
    }
  }
}

void head_permutation(const Bench& bench) {
  for (const Op op : {Op::attend_compressed, Op::attend_selected, Op::attend_window, Op::attend, Op::select}) {
    const OpCase c = bench.make(op, Bench::shape());
    const std::int64_t h = c.shape.Hq / c.shape.G;
    const at::Tensor heads = at::arange(c.shape.Hq, c.inputs[0].options().dtype(at::kLong));
    const at::Tensor swapped = heads.view({c.shape.G, h}).flip(1).flatten();  // reversed inside every group
    OpCase permuted = c;
    permuted.inputs[0] = c.inputs[0].index_select(2, swapped);
    for (const std::string& way : Bench::ways_of(op)) {
      const at::Tensor before = bench.run(way, c);
      const at::Tensor wanted = op == Op::select ? before : before.index_select(2, swapped);
      bench.expect_near(fmt::format("{}: permuting heads inside a group permutes the output, {}", c.name(), way),
                        bench.run(way, permuted).to(at::kDouble), wanted.to(at::kDouble));
    }
  }
}

void value_scaling(const Bench& bench) {
  for (const Op op : {Op::compress, Op::attend_compressed, Op::attend_selected, Op::attend_window, Op::attend}) {
    OpCase c = bench.make(op, Bench::shape());
    const std::size_t output = op == Op::compress ? 1 : 0;
    std::vector<std::size_t> values = {op == Op::compress ? std::size_t{1} : std::size_t{2}};
    if (op == Op::attend) values = {2, 4, 6};
    for (const std::string& way : Bench::ways_of(op)) {
      const nsa::Ops ops = ops_of(bench.subject, way_named(way), c.shape, op, at::kDouble, device_of(bench.context));
      std::vector<at::Tensor> scaled = c.inputs;
      for (const std::size_t value : values) scaled[value] = c.inputs[value] * -4;
      bench.expect_near(fmt::format("{}: scaling V scales the output, {}", c.name(), way), c.call(ops, scaled)[output],
                        c.call(ops, c.inputs)[output] * -4);
    }
  }
}

// One token: every branch that sees a key returns its value.
void single_token(const Bench& bench) {
  OpShape s = Bench::shape();
  s.S = 1;
  OpCase selected = bench.make(Op::attend_selected, s);
  selected.blocks.fill_(-1).select(3, 0).fill_(0);
  for (const OpCase& c : {selected, bench.make(Op::attend_window, s)}) {
    for (const std::string& way : Bench::ways_of(c.op)) {
      bench.expect_near(fmt::format("{}: one token returns its own value, {}", c.name(), way), bench.run(way, c),
                        c.inputs[2].repeat_interleave(s.Hq / s.G, 2));
    }
  }
}

const std::map<std::string, void (*)(const Bench&)>& identities_by_name() {
  static const std::map<std::string, void (*)(const Bench&)> all = {
      {"all_blocks_selected", all_blocks_selected}, {"batch_of_two", batch_of_two}, {"gate_one_hot", gate_one_hot},
      {"head_permutation", head_permutation},       {"single_token", single_token}, {"value_scaling", value_scaling},
      {"window_covers_all", window_covers_all},     {"window_width", window_width}};
  return all;
}

}  // namespace

const std::vector<std::string>& identity_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, check] : identities_by_name()) all.push_back(name);
    return all;
  }();
  return names;
}

void identity(Context& context, const Subject& subject, const std::string& name) {
  const at::NoGradGuard no_grad;
  identities_by_name().at(name)({context, subject});
}

}  // namespace suites::parity_cases
