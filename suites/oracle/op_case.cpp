#include "suites/oracle/op_case.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "nsa/call.hpp"
#include "suites/subject.hpp"

namespace suites::oracle {

namespace {

using Tensors = std::vector<at::Tensor>;

class Draw {
 public:
  Draw(at::ScalarType dtype, at::Device device, std::uint64_t seed)
      : generator(at::make_generator<at::CPUGeneratorImpl>(seed)), dtype_(dtype), device_(device) {}

  at::Tensor normal(at::IntArrayRef sizes, double std = 1) {
    return (at::randn(sizes, generator, at::TensorOptions(at::kDouble)) * std).to(dtype_).to(device_);
  }
  at::Tensor gates(at::IntArrayRef sizes) { return at::softmax(normal(sizes).to(at::kDouble), -1).to(dtype_); }
  [[nodiscard]] at::Device device() const { return device_; }

  at::Generator generator;

 private:
  at::ScalarType dtype_;
  at::Device device_;
};

std::int64_t blocks_of(const OpShape& s) {
  std::int64_t blocks = 0;
  for (const auto& [begin, end] : nsa::documents(s.cu_seqlens, s.S)) {
    blocks += nsa::compressed_blocks(s.geometry, end - begin);
  }
  return blocks;
}

void fill_compress(OpCase& c, Draw& draw) {
  const OpShape& s = c.shape;
  const std::int64_t l = s.geometry.l;
  c.input_names = {"k", "v"};
  c.inputs = {draw.normal({s.B, s.S, s.G, s.Dk}), draw.normal({s.B, s.S, s.G, s.Dv})};
  c.input_rows = {Rows::tokens, Rows::tokens};
  c.output_names = {"k", "v"};
  c.output_rows = Rows::blocks;
  c.differentiable_outputs = 2;
  if (s.phi == nsa::Phi::avg) return;
  for (const auto& [letter, D] : {std::pair{"k", s.Dk}, std::pair{"v", s.Dv}}) {
    for (const char* part : {"position_", "fc1_", "fc2_"}) {
      c.input_names.push_back(std::string(part) + letter);
      c.input_rows.push_back(Rows::none);
    }
    c.inputs.push_back(draw.normal({l, D}));
    c.inputs.push_back(draw.normal({D, l * D}, 1 / std::sqrt(static_cast<double>(l * D))));
    c.inputs.push_back(draw.normal({D, D}, 1 / std::sqrt(static_cast<double>(D))));
  }
}

void fill_select(OpCase& c, Draw& draw) {
  const OpShape& s = c.shape;
  c.input_names = {"q", "k_cmp"};
  c.input_rows = {Rows::tokens, Rows::blocks};
  c.inputs = {draw.normal({s.B, s.S, s.Hq, s.Dk}), draw.normal({s.B, blocks_of(s), s.G, s.Dk})};
  c.output_names = {"blocks"};
  c.differentiable_outputs = 0;
}

// Queries, and keys and values that are tokens or compressed blocks.
void fill_attend(OpCase& c, Draw& draw) {
  const OpShape& s = c.shape;
  const bool compressed = c.op == nsa::Op::attend_compressed;
  const std::int64_t keys = compressed ? blocks_of(s) : s.S;
  const Rows rows = compressed ? Rows::blocks : Rows::tokens;
  c.input_names =
      compressed ? std::vector<std::string>{"q", "k_cmp", "v_cmp"} : std::vector<std::string>{"q", "k", "v"};
  c.input_rows = {Rows::tokens, rows, rows};
  c.inputs = {draw.normal({s.B, s.S, s.Hq, s.Dk}), draw.normal({s.B, keys, s.G, s.Dk}),
              draw.normal({s.B, keys, s.G, s.Dv})};
  c.output_names = {"o", "lse"};
  if (c.op == nsa::Op::attend_selected) c.blocks = random_blocks(s, draw.generator).to(draw.device());
}

void fill_combine(OpCase& c, Draw& draw) {
  const OpShape& s = c.shape;
  c.input_names = {"gates", "o_cmp", "o_sel", "o_win"};
  c.input_rows.assign(4, Rows::tokens);
  c.inputs = {draw.gates({s.B, s.S, s.G, 3})};
  for (int branch = 0; branch < 3; ++branch) c.inputs.push_back(draw.normal({s.B, s.S, s.Hq, s.Dv}));
  c.output_names = {"o"};
}

// The choice is given: one that each backend makes for itself differs where scores are tied within rounding.
void fill_whole(OpCase& c, Draw& draw) {
  const OpShape& s = c.shape;
  c.input_names = {"q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates"};
  c.input_rows = {Rows::tokens, Rows::blocks, Rows::blocks, Rows::tokens,
                  Rows::tokens, Rows::tokens, Rows::tokens, Rows::tokens};
  c.inputs = {draw.normal({s.B, s.S, s.Hq, s.Dk})};
  for (const std::int64_t rows : {blocks_of(s), s.S, s.S}) {
    c.inputs.push_back(draw.normal({s.B, rows, s.G, s.Dk}));
    c.inputs.push_back(draw.normal({s.B, rows, s.G, s.Dv}));
  }
  c.inputs.push_back(draw.gates({s.B, s.S, s.G, 3}));
  c.output_names = {"o"};
  c.blocks = random_blocks(s, draw.generator).to(draw.device());
}

// The choice is the op's own: steep queries leave few of them near a tie.
void fill_attention(OpCase& c, Draw& draw) {
  constexpr double kSteep = 6;
  const OpShape& s = c.shape;
  c.input_names = {"q", "k", "v", "gates"};
  c.input_rows.assign(4, Rows::tokens);
  c.inputs = {draw.normal({s.B, s.S, s.Hq, s.Dk}, kSteep), draw.normal({s.B, s.S, s.G, s.Dk}),
              draw.normal({s.B, s.S, s.G, s.Dv}), draw.gates({s.B, s.S, s.G, 3})};
  c.output_names = {"o"};
}

// As a model calls it: gates in the type in which they are computed.
at::Tensor gates_of(const at::Tensor& gates, const at::Tensor& like) {
  return gates.to(nsa::accumulation_type(like.scalar_type()));
}

Tensors whole(const nsa::Ops& ops, const OpCase& c, const Tensors& in) {
  nsa::AttendArgs args{
      in[0], {in[1], in[2]}, in[3], in[4], in[5], in[6], gates_of(in[7], in[0]), c.shape.geometry, c.shape.cu_seqlens};
  args.blocks = c.blocks;
  return {ops.attend(args)};
}

Tensors attention(const nsa::Ops& ops, const OpShape& s, const Tensors& in) {
  const auto& [q, k, v, gates] = std::tie(in[0], in[1], in[2], in[3]);
  const nsa::Compressed kv = ops.compress({k, v, s.geometry, s.cu_seqlens, {}, {}});
  return {ops.attend({q, {kv.k, kv.v}, k, v, k, v, gates_of(gates, q), s.geometry, s.cu_seqlens})};
}

Tensors compress(const nsa::Ops& ops, const OpShape& s, const Tensors& in) {
  nsa::CompressArgs args{in[0], in[1], s.geometry, s.cu_seqlens, {}, {}};
  if (s.phi == nsa::Phi::mlp) {
    args.phi_k = nsa::PhiWeights{in[2], in[3], in[4]};
    args.phi_v = nsa::PhiWeights{in[5], in[6], in[7]};
  }
  const nsa::Compressed out = ops.compress(args);
  return {out.k, out.v};
}

Tensors pair(const nsa::Attended& attended) { return {attended.o, attended.lse}; }

}  // namespace

OpShape parity_shape(const nsa::Geometry& geometry) {
  OpShape shape;
  shape.geometry = geometry;
  shape.S = 2 * geometry.w + geometry.l_sel + 3;
  return shape;
}

OpShape as_attention(OpShape shape) {
  constexpr std::int64_t kForced = 3;
  shape.attention = true;
  shape.Dv = shape.Dk;
  shape.geometry.n_sel = std::min(shape.geometry.n_sel, kForced + 1);
  return shape;
}

OpShape tiny_shape() {
  OpShape shape;
  shape.geometry = {.l = 4, .d = 2, .l_sel = 4, .n_sel = 3, .w = 5};
  shape.B = 2;
  shape.S = 19;
  shape.Hq = 4;
  shape.G = 2;
  shape.Dk = 6;
  shape.Dv = 3;
  return shape;
}

nsa::Call call_of(const OpShape& shape, at::ScalarType dtype, at::Device device, bool training) {
  nsa::ModelConfig model;
  model.n_heads = shape.Hq;
  model.n_kv_groups = shape.G;
  model.d_k = shape.Dk;
  model.d_v = shape.Dv;
  model.nsa = shape.geometry;
  model.phi = shape.phi;
  const nsa::Precision precision = dtype == at::kDouble  ? nsa::Precision::fp64
                                   : dtype == at::kFloat ? nsa::Precision::fp32
                                                         : nsa::Precision::bf16;
  return nsa::call_of(model, shape.B, shape.S, precision, device, training, shape.cu_seqlens.has_value());
}

OpCase make_op_case(nsa::Op op, const OpShape& shape, at::ScalarType dtype, at::Device device, std::uint64_t seed) {
  OpCase c;
  c.op = op;
  c.shape = shape;
  Draw draw(dtype, device, seed);
  switch (op) {
    case nsa::Op::compress:
      fill_compress(c, draw);
      break;
    case nsa::Op::select:
      fill_select(c, draw);
      break;
    case nsa::Op::attend_compressed:
    case nsa::Op::attend_selected:
    case nsa::Op::attend_window:
      fill_attend(c, draw);
      break;
    case nsa::Op::combine:
      fill_combine(c, draw);
      break;
    case nsa::Op::attend:
      if (shape.attention) {
        fill_attention(c, draw);
      } else {
        fill_whole(c, draw);
      }
      break;
  }
  return c;
}

Tensors OpCase::call(const nsa::Ops& ops, const Tensors& in) const {
  const auto& [geometry, cu] = std::tie(shape.geometry, shape.cu_seqlens);
  switch (op) {
    case nsa::Op::compress:
      return compress(ops, shape, in);
    case nsa::Op::select:
      return {ops.select({in[0], in[1], geometry, cu})};
    case nsa::Op::attend_compressed:
      return pair(ops.attend_compressed({in[0], {in[1], in[2]}, geometry, cu}));
    case nsa::Op::attend_selected:
      return pair(ops.attend_selected({in[0], in[1], in[2], blocks, geometry, cu}));
    case nsa::Op::attend_window:
      return pair(ops.attend_window({in[0], in[1], in[2], geometry, cu}));
    case nsa::Op::combine:
      return {ops.combine({gates_of(in[0], in[1]), in[1], in[2], in[3]})};
    case nsa::Op::attend:
      return shape.attention ? attention(ops, shape, in) : whole(ops, *this, in);
  }
  return {};
}

std::string OpCase::name() const {
  if (shape.attention) return "attention";
  return std::string(nsa::to_string(op)) + (op == nsa::Op::compress && shape.phi == nsa::Phi::mlp ? "_mlp" : "");
}

std::string OpCase::branch() const {
  switch (op) {
    case nsa::Op::compress:
    case nsa::Op::attend_compressed:
      return "cmp";
    case nsa::Op::select:
    case nsa::Op::attend_selected:
      return "sel";
    case nsa::Op::attend_window:
      return "win";
    case nsa::Op::combine:
    case nsa::Op::attend:
      break;
  }
  return "";
}

OpCase document_of(const OpCase& packed, std::size_t index) {
  const auto documents = nsa::documents(packed.shape.cu_seqlens, packed.shape.S);
  const nsa::Geometry& g = packed.shape.geometry;
  std::int64_t first_block = 0;
  for (std::size_t i = 0; i < index; ++i) {
    first_block += nsa::compressed_blocks(g, documents[i].second - documents[i].first);
  }
  const auto [begin, end] = documents.at(index);
  OpCase document = packed;
  document.shape.S = end - begin;
  document.shape.cu_seqlens = {};
  for (std::size_t i = 0; i < packed.inputs.size(); ++i) {
    if (packed.input_rows[i] == Rows::tokens) document.inputs[i] = packed.inputs[i].slice(1, begin, end);
    if (packed.input_rows[i] == Rows::blocks) {
      document.inputs[i] =
          packed.inputs[i].slice(1, first_block, first_block + nsa::compressed_blocks(g, document.shape.S));
    }
  }
  if (packed.blocks.defined()) document.blocks = packed.blocks.slice(1, begin, end);
  return document;
}

at::Tensor random_blocks(const OpShape& s, at::Generator& generator) {
  const std::int64_t n = s.geometry.n_sel, l_sel = s.geometry.l_sel;
  at::Tensor blocks = at::full({s.B, s.S, s.G, n}, -1, at::kInt);
  auto out = blocks.accessor<int, 4>();
  std::int64_t query = 0;
  for (const auto& [begin, end] : nsa::documents(s.cu_seqlens, s.S)) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t candidates = (t - begin) / l_sel + 1;
      for (std::int64_t b = 0; b < s.B; ++b) {
        for (std::int64_t g = 0; g < s.G; ++g) {
          if (!s.own_block && ++query % 7 == 0) continue;  // padding: nothing is chosen
          const std::int64_t taken = std::min(n, candidates);
          const at::Tensor order = at::randperm(candidates, generator, at::TensorOptions(at::kInt));
          const at::Tensor chosen = std::get<0>(order.slice(0, 0, taken).sort());
          for (std::int64_t i = 0; i < taken; ++i) out[b][t][g][i] = chosen[i].item<int>();
          if (s.own_block) out[b][t][g][taken - 1] = static_cast<int>(candidates - 1);  // the last one of all
        }
      }
    }
  }
  return blocks;
}

at::Tensor over_heads(const at::Tensor& rows, const at::Tensor& like) {
  return rows.to(like.device()).repeat_interleave(like.size(2) / rows.size(2), 2).unsqueeze(3);
}

Evaluation evaluate(const OpCase& c, const nsa::Ops& ops, const EvaluateOptions& options) {
  return evaluate(c, ops, options, [](std::size_t, const at::Tensor&) {});
}

Evaluation evaluate(const OpCase& c, const nsa::Ops& ops, const EvaluateOptions& options,
                    const ChangeCotangent& change) {
  const at::AutoGradMode grad(options.gradients);
  Tensors inputs;
  for (const at::Tensor& t : c.inputs) {
    inputs.push_back(t.to(options.dtype).detach().clone().requires_grad_(options.gradients));
  }
  const Tensors outputs = c.call(ops, inputs);
  Evaluation result;
  for (const at::Tensor& output : outputs) result.outputs.push_back(output.defined() ? output.detach() : output);
  if (!options.gradients) return result;

  result.gradients.resize(inputs.size());
  Draw draw(at::kDouble, inputs.front().device(), options.cotangent_seed);
  Tensors carriers, cotangents;
  for (std::size_t i = 0; i < c.differentiable_outputs; ++i) {
    at::Tensor cotangent = draw.normal(outputs[i].sizes()).to(at::kBFloat16);  // the same values in every dtype
    if (options.rows.defined()) cotangent = cotangent * over_heads(options.rows, cotangent);
    change(i, cotangent);
    if (!outputs[i].requires_grad()) continue;
    carriers.push_back(outputs[i]);
    cotangents.push_back(cotangent.to(outputs[i].scalar_type()));
  }
  result.requires_grad = carriers.size() == c.differentiable_outputs;
  if (carriers.empty()) return result;
  const Tensors gradients =
      torch::autograd::grad(carriers, inputs, cotangents, std::nullopt, false, /*allow_unused=*/true);
  result.gradients.assign(gradients.begin(), gradients.end());
  return result;
}

}  // namespace suites::oracle
