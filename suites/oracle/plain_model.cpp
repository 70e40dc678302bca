#include "suites/oracle/plain_model.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace suites::oracle {

namespace {

using nsa::ForcedBranch;
using nsa::Geometry;
using nsa::ModelConfig;

// Softmax, scores and gates are fp32 whatever the storage type, fp64 for fp64.
at::ScalarType wide(const at::Tensor& t) { return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor curve(const at::Tensor& x, Curve which) {
  switch (which) {
    case Curve::silu:
      return x * at::sigmoid(x);
    case Curve::gelu:
      return at::gelu(x);
    case Curve::relu:
      return at::relu(x);
  }
  return x;
}

at::Tensor times(const at::Tensor& x, const at::Tensor& weight) { return at::matmul(x, weight.t()); }

at::Tensor places(std::int64_t count, const at::Tensor& like) {
  return at::arange(count, like.options().dtype(at::kLong).requires_grad(false));
}

// One layer's view of the parameters.
struct Weights {
  const PlainModel& model;
  std::string prefix;
  [[nodiscard]] const at::Tensor& operator()(const std::string& name) const {
    return model.parameters.at(prefix + name);
  }
};

// x, which no gradient leaves where its path is cut.
at::Tensor along(const Constants& c, std::string_view path, const at::Tensor& x) {
  return c.cut == path ? x.detach() : x;
}

// x / sqrt(mean(x^2) + eps) * weight, over the last dimension.
at::Tensor normed(const at::Tensor& x, const at::Tensor& weight, const Constants& c) {
  at::Tensor wide_x = x.to(wide(x));
  if (c.norm_centres) wide_x = wide_x - wide_x.mean(-1, /*keepdim=*/true);
  const at::Tensor size = (wide_x.square().mean(-1, /*keepdim=*/true) + c.norm_eps).sqrt();
  at::Tensor by = weight.to(wide(x));
  if (c.norm_weight_offset != 0) by = by + c.norm_weight_offset;
  return (wide_x / along(c, "through the size that a norm divides by", size) * by).to(x.scalar_type());
}

// RoPE of x [B,T,H,D], whose first token stands at position `first` of its document: pair i of D/2 is turned by
// position / rope_scale * base^(-2i/D), by `c`'s defaults.
at::Tensor turned(const PlainModel& m, const at::Tensor& x, std::int64_t first) {
  const Constants& c = m.constants;
  if (c.rope_back != 1) {  // the right values, and a gradient by another turn
    PlainModel right = m, other = m;
    right.constants.rope_back = other.constants.rope_back = 1;
    other.constants.rope_turn = c.rope_turn * c.rope_back;
    const at::Tensor way = turned(other, x, first);
    return turned(right, x, first).detach() + (way - way.detach());
  }
  const std::int64_t D = x.size(3), half = D / 2;
  const auto options = x.options().requires_grad(false).dtype(m.angles);
  const at::Tensor pair = at::arange(half, options.dtype(at::kDouble));
  const at::Tensor speed =
      at::pow(m.config.rope_base, pair * (-c.rope_power / static_cast<double>(D - c.rope_span))).to(m.angles);
  const at::Tensor position =
      (at::arange(x.size(1), options) + static_cast<double>(first + c.rope_first)) / m.flags.rope_scale;
  const at::Tensor angle = at::outer(position, speed).unsqueeze(1) * c.rope_turn;  // [T,1,D/2]
  const at::Tensor cos = angle.cos().to(wide(x)), sin = angle.sin().to(wide(x));
  const bool interleaved = c.rope_pairs == Pairs::interleaved;
  const at::Tensor w = x.to(wide(x));
  const at::Tensor a = interleaved ? w.slice(3, 0, D, 2) : w.slice(3, 0, half);
  const at::Tensor b = interleaved ? w.slice(3, 1, D, 2) : w.slice(3, half, D);
  const at::Tensor turned_a = a * cos - b * sin, turned_b = a * sin + b * cos;
  const at::Tensor out = interleaved ? at::stack({turned_a, turned_b}, 4).flatten(3) : at::cat({turned_a, turned_b}, 3);
  return out.to(x.scalar_type());
}

// ---- the branches ---------------------------------------------------------------------------------------------------

std::int64_t complete_blocks(const Geometry& g, std::int64_t S) { return S < g.l ? 0 : (S - g.l) / g.d + 1; }
std::int64_t choosable_blocks(const Geometry& g, std::int64_t S) { return (S + g.l_sel - 1) / g.l_sel; }

// Eq 7: rows [B,S,G,D] -> blocks [B,N_c,G,D].
at::Tensor compressed(const PlainModel& m, const Weights& weights, const std::string& phi, const at::Tensor& rows) {
  const Geometry& g = m.config.nsa;
  const std::int64_t B = rows.size(0), G = rows.size(2), D = rows.size(3), blocks = complete_blocks(g, rows.size(1));
  const at::Tensor token = places(blocks, rows).unsqueeze(1) * g.d + places(g.l, rows);  // [N_c,l]
  const at::Tensor block = rows.index_select(1, token.flatten()).view({B, blocks, g.l, G, D});
  if (m.config.phi == nsa::Phi::avg) return block.to(wide(rows)).mean(2).to(rows.scalar_type());
  const at::Tensor placed = block + weights(phi + ".position").unsqueeze(1);  // [l,1,D]
  const at::Tensor vector =
      (m.constants.phi_by_width ? placed.permute({0, 1, 3, 4, 2}) : placed.permute({0, 1, 3, 2, 4}))
          .reshape({B, blocks, G, g.l * D});
  return times(curve(times(vector, weights(phi + ".fc1.weight")), m.constants.phi), weights(phi + ".fc2.weight"));
}

constexpr std::string_view kOtherHeads = "to keys and values from all heads of a group but the first";

// Keys or values [B,N,G,D] as the h heads of a group read them: [B,N,G,h,D].
at::Tensor of_heads(const at::Tensor& rows, std::int64_t h, const Constants& c) {
  const at::Tensor first = rows.unsqueeze(3), others = along(c, kOtherHeads, first);
  return at::cat({first, others.expand({-1, -1, -1, h - 1, -1})}, 3);
}

// Probabilities [B,G,h,T,N] of queries [B,T,Hq,D] over keys [B,N,G,D]; `seen` [..,T,N] broadcasts to it. A row that
// sees nothing is zero.
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k, const at::Tensor& seen, const Constants& c) {
  const std::int64_t G = k.size(2), h = q.size(2) / G;
  const auto type = wide(q);
  const at::Tensor grouped =
      c.queries_one_in_g ? q.to(type).unflatten(2, {h, G}).transpose(2, 3) : q.to(type).unflatten(2, {G, h});
  const double scale = c.attention_scale / std::sqrt(static_cast<double>(q.size(3)));
  // All heads of a group in one product, so that the gradient of its keys is one sum over queries and heads.
  const at::Tensor scores =
      (c.cut == kOtherHeads ? at::einsum("btghd,bnghd->bghtn", {grouped, of_heads(k.to(type), h, c)})
                            : at::einsum("btghd,bngd->bghtn", {grouped, k.to(type)})) *
      scale;
  const at::Tensor hidden = seen.logical_not(), masked = scores.masked_fill(hidden, -1e30);
  constexpr std::string_view kSum = "through the sum of a softmax";
  if (c.cut != kSum || masked.size(-1) == 0) return at::softmax(masked, -1).masked_fill(hidden, 0);
  const at::Tensor e = (masked - masked.detach().amax(-1, true)).exp();
  return (e / along(c, kSum, e.sum(-1, true))).masked_fill(hidden, 0);
}

// [B,G,h,T,N] over values [B,N,G,Dv] -> [B,T,Hq,Dv].
at::Tensor mixed(const at::Tensor& p, const at::Tensor& v, const Constants& c) {
  const at::Tensor values = v.to(p.scalar_type());
  const at::Tensor o = c.cut == kOtherHeads ? at::einsum("bghtn,bnghd->btghd", {p, of_heads(values, p.size(2), c)})
                                            : at::einsum("bghtn,bngd->btghd", {p, values});
  return (c.outputs_one_in_g ? o.transpose(2, 3) : o).flatten(2, 3).to(v.scalar_type());
}

// Eq 9 and 10: p [B,G,h,T,N_c] -> [B,T,G,blocks]. In units of d a selection block has l'/d parts and a compressed block
// l/d; part m of block j is part r of compressed block j*l'/d + m - r.
at::Tensor importance(const at::Tensor& p, const Geometry& g, std::int64_t blocks) {
  const at::Tensor of_group = p.sum(2);
  at::Tensor scores = at::zeros({p.size(0), p.size(1), p.size(3), blocks}, p.options());
  for (std::int64_t j = 0; j < blocks; ++j)
    for (std::int64_t m = 0; m < g.l_sel / g.d; ++m)
      for (std::int64_t r = 0; r < g.l / g.d; ++r) {
        const std::int64_t i = j * (g.l_sel / g.d) + m - r;
        if (i >= 0 && i < p.size(4)) scores.select(3, j) += of_group.select(3, i);
      }
  return scores.transpose(1, 2);
}

// Eq 11 for queries at the positions `t` [T]: scores [B,T,G,blocks] -> blocks [B,T,G,n], ascending, padded with -1.
at::Tensor chosen(const at::Tensor& scores, const at::Tensor& t, const Geometry& g) {
  const std::int64_t blocks = scores.size(3);
  const at::Tensor block = places(blocks, scores);
  const at::Tensor current = at::floor_divide(t, g.l_sel).view({-1, 1, 1});
  const at::Tensor forced = block.eq(0).logical_or(block.eq(current)).logical_or(block.eq(current - 1));
  const at::Tensor ranked = scores.masked_fill(forced, 1e30).masked_fill(block.gt(current), -1e30);
  const at::Tensor order = std::get<1>(at::sort(ranked, /*stable=*/true, -1, /*descending=*/true));
  const at::Tensor first = order.slice(3, 0, g.n_sel);
  const at::Tensor sorted = std::get<0>(at::sort(first.masked_fill(first.gt(current), blocks), -1));
  const at::Tensor padded = at::constant_pad_nd(sorted, {0, g.n_sel - sorted.size(3)}, blocks);
  return padded.masked_fill(padded.eq(blocks), -1).to(at::kInt);
}

// Which of `keys` tokens the chosen blocks hold, those up to each query's position `t`: [B,G,1,T,keys].
at::Tensor tokens_of(const at::Tensor& blocks, const at::Tensor& t, std::int64_t keys, const PlainModel& m) {
  const Geometry& g = m.config.nsa;
  const at::Tensor token = places(keys, blocks);
  const at::Tensor own = at::floor_divide(token, g.l_sel);
  at::Tensor seen =
      at::zeros({blocks.size(0), blocks.size(1), blocks.size(2), keys}, blocks.options().dtype(at::kBool));
  for (std::int64_t i = 0; i < blocks.size(3); ++i) seen.logical_or_(blocks.select(3, i).unsqueeze(3).eq(own));
  return seen.logical_and_(token.le(t.view({-1, 1, 1}) + m.constants.sel_early)).transpose(1, 2).unsqueeze(2);
}

// Compressed blocks that are complete for the queries at `t`: [T,N_c].
at::Tensor complete_at(const at::Tensor& t, std::int64_t blocks, const Geometry& g, std::int64_t early = 0) {
  return (places(blocks, t) * g.d + (g.l - 1)).le(t.unsqueeze(1) + early);
}

struct Projections {
  at::Tensor gates, q;  // q turned
  at::Tensor k_cmp, v_cmp, k_sel, v_sel, k_win, v_win;
};

bool runs(const PlainModel& m, ForcedBranch branch) {
  return m.flags.forced_branch == ForcedBranch::none || m.flags.forced_branch == branch;
}

// x [B,T,dim]: tokens of one document from position `first` on.
Projections project(const PlainModel& m, const Weights& weights, const at::Tensor& x, std::int64_t first) {
  const ModelConfig& c = m.config;
  const auto heads = [&](const std::string& name, std::int64_t count) {
    const at::Tensor features = times(x, weights(name + ".weight"));
    return m.constants.features_one_in_h ? features.unflatten(2, {-1, count}).transpose(2, 3)
                                         : features.unflatten(2, {count, -1});
  };
  Projections p;
  const at::Tensor q = heads("q", c.n_heads);
  p.q = m.constants.rope_of_queries ? turned(m, q, first) : q;
  const at::Tensor source =
      along(m.constants, "through the gate's input", m.constants.gate_after_rope ? p.q : q).to(wide(x));
  const std::int64_t h = c.n_heads / c.n_kv_groups;
  at::Tensor mean;  // [B,T,G,Dk]
  switch (m.constants.gate_heads) {
    case Heads::of_the_group:
      mean = source.unflatten(2, {c.n_kv_groups, h}).mean(3);
      break;
    case Heads::one_in_g:
      mean = source.unflatten(2, {h, c.n_kv_groups}).mean(2);
      break;
    case Heads::first:
      mean = source.unflatten(2, {c.n_kv_groups, h}).select(3, 0);
      break;
    case Heads::sum:
      mean = source.unflatten(2, {c.n_kv_groups, h}).sum(3);
      break;
  }
  const auto linear = [&](const at::Tensor& in, const std::string& name) {
    return times(in, weights(name + ".weight").to(wide(x))) + weights(name + ".bias").to(wide(x));
  };
  const at::Tensor raw = linear(curve(linear(mean, "gate.fc1"), m.constants.gate), "gate.fc2") / c.gate_tau;
  const std::int64_t branches = m.constants.gate_over_groups ? -2 : -1;
  p.gates = c.gate == nsa::GateActivation::softmax ? at::softmax(raw, branches) : at::sigmoid(raw);
  if (m.flags.uniform_gate) p.gates = at::full_like(p.gates, 1.0 / 3.0);
  constexpr ForcedBranch kOrder[] = {ForcedBranch::cmp, ForcedBranch::sel, ForcedBranch::win};
  if (m.flags.forced_branch != ForcedBranch::none) {
    p.gates = at::zeros_like(p.gates);
    for (std::int64_t i = 0; i < 3; ++i)
      if (kOrder[i] == m.flags.forced_branch) p.gates.select(3, i).fill_(1);
  }
  if (m.flags.stopgrad_gates) p.gates = p.gates.detach();
  const auto key = [&](const std::string& name) {
    const at::Tensor k = heads(name, c.n_kv_groups);
    return m.constants.rope_of_keys ? turned(m, k, first) : k;
  };
  const bool cmp = runs(m, ForcedBranch::cmp), sel = runs(m, ForcedBranch::sel), win = runs(m, ForcedBranch::win);
  if (cmp || sel) {
    p.k_cmp = key("k_cmp");
    p.v_cmp = heads("v_cmp", c.n_kv_groups);
  }
  if (sel) {
    p.k_sel = key("k_sel");
    p.v_sel = heads("v_sel", c.n_kv_groups);
  }
  if (win) {
    p.k_win = key("k_win");
    p.v_win = heads("v_win", c.n_kv_groups);
  }
  return p;
}

// The branches' outputs for queries at `t` [T] over what they may see, and their gated sum.
struct Sources {
  at::Tensor k_blocks, v_blocks, k_sel, v_sel, k_win, v_win;
};
Stages attended(const PlainModel& m, const Projections& p, const Sources& s, const at::Tensor& t,
                const at::Tensor& held) {
  const Geometry& g = m.config.nsa;
  const Constants& c = m.constants;
  Stages stages;
  at::Tensor cmp, sel, win, p_cmp;
  if (s.k_blocks.defined())
    p_cmp = probabilities(along(c, "to the queries through the compressed branch", p.q),
                          along(c, "to compressed keys", s.k_blocks),
                          complete_at(t, s.k_blocks.size(1), g, c.cmp_early), c);
  if (runs(m, ForcedBranch::cmp))
    stages.emplace_back("cmp.o", cmp = mixed(p_cmp, along(c, "to compressed values", s.v_blocks), c));
  if (runs(m, ForcedBranch::sel)) {
    const std::int64_t keys = s.k_sel.size(1);
    const at::Tensor blocks =
        held.defined() ? held : chosen(importance(p_cmp.detach(), g, choosable_blocks(g, keys)), t, g);
    stages.emplace_back("blocks", blocks);
    const at::Tensor p_sel =
        probabilities(along(c, "to the queries through the selected branch", p.q),
                      along(c, "to the selected branch's keys", s.k_sel), tokens_of(blocks, t, keys, m), c);
    sel = mixed(p_sel, along(c, "to the selected branch's values", s.v_sel), c);
    stages.emplace_back("sel.o", sel);
  }
  if (runs(m, ForcedBranch::win)) {
    const at::Tensor token = places(s.k_win.size(1), t), until = t.unsqueeze(1);
    const at::Tensor seen = token.le(until).logical_and(token.gt(until - g.w));
    const at::Tensor p_win = probabilities(along(c, "to the queries through the window", p.q),
                                           along(c, "to the window's keys", s.k_win), seen, c);
    stages.emplace_back("win.o", win = mixed(p_win, along(c, "to the window's values", s.v_win), c));
  }
  if (m.flags.forced_branch != ForcedBranch::none) {
    stages.emplace_back("o", cmp.defined() ? cmp : sel.defined() ? sel : win);
    return stages;
  }
  const std::int64_t h = m.config.n_heads / m.config.n_kv_groups;
  const at::Tensor of_head = c.gates_one_in_g ? p.gates.repeat({1, 1, h, 1}) : p.gates.repeat_interleave(h, 2);
  const auto gated = [&](const at::Tensor& o, std::size_t branch, std::string_view output, std::string_view gate) {
    const at::Tensor weights = of_head.narrow(3, c.gate_order[branch], 1);  // [B,T,Hq,1]
    return along(c, output, o).to(of_head.scalar_type()) * along(c, gate, weights);
  };
  const at::Tensor o = gated(cmp, 0, "through the compressed branch's output", "through the compressed branch's gate") +
                       gated(sel, 1, "through the selected branch's output", "through the selected branch's gate") +
                       gated(win, 2, "through the window's output", "through the window's gate");
  stages.emplace_back("o", o.to(p.q.scalar_type()));
  return stages;
}

// Attention of one document: x [B,S,dim], normed.
Stages document(const PlainModel& m, const Weights& weights, const at::Tensor& x, const at::Tensor& held) {
  const Projections p = project(m, weights, x, 0);
  Sources s{{}, {}, p.k_sel, p.v_sel, p.k_win, p.v_win};
  Stages stages = {{"gates", p.gates}, {"q", p.q}};
  if (p.k_cmp.defined()) {
    stages.emplace_back("cmp.k", s.k_blocks = compressed(m, weights, "phi_k", p.k_cmp));
    stages.emplace_back("cmp.v", s.v_blocks = compressed(m, weights, "phi_v", p.v_cmp));
  }
  for (auto& stage : attended(m, p, s, places(x.size(1), x), held)) stages.push_back(std::move(stage));
  return stages;
}

// All documents, each by itself, laid end to end again.
Stages attention(const PlainModel& m, const Weights& weights, const at::Tensor& x, const Documents& documents,
                 const at::Tensor& held) {
  if (documents.empty()) return document(m, weights, x, held);
  std::map<std::string, std::vector<at::Tensor>> parts;
  std::vector<std::string> order;
  std::int64_t begin = 0;
  for (const std::int64_t length : documents) {
    const std::int64_t end = std::min(begin + length, x.size(1));
    if (end > begin) {
      const at::Tensor own = held.defined() ? held.slice(1, begin, end) : held;
      for (auto& [name, value] : document(m, weights, x.slice(1, begin, end), own)) {
        if (!parts.contains(name)) order.push_back(name);
        parts[name].push_back(value);
      }
    }
    begin = end;
  }
  Stages all;
  for (const std::string& name : order) all.emplace_back(name, at::cat(parts.at(name), 1));
  return all;
}

// Everything round attention: `attend` gives its stages for the normed stream of one layer.
using Attend = std::function<Stages(const Weights& weights, std::size_t layer, const at::Tensor& x)>;
Pass through(const PlainModel& m, const at::Tensor& tokens, const Attend& attend) {
  const Constants& c = m.constants;
  Pass pass;
  const auto show = [&](const std::string& name, const at::Tensor& value) {
    pass.stages.emplace_back(name, value);
    return value;
  };
  at::Tensor x = m.parameters.at("embedding.weight").index_select(0, tokens.flatten());
  x = show("embedding", x.view({tokens.size(0), tokens.size(1), -1}) * c.embedding_scale);
  for (std::int64_t layer = 0; layer < m.config.n_layers; ++layer) {
    const std::string name = fmt::format("layers.{}", layer);
    const Weights block{m, name + "."}, weights{m, name + ".attention."};
    at::Tensor o;
    const at::Tensor before = x, read_by_attention = normed(along(c, "through attention's input", x),
                                                            block("norm_attention.weight"), c);
    for (const auto& [stage, value] : attend(weights, static_cast<std::size_t>(layer), read_by_attention))
      o = show(name + ".attention." + stage, value);  // the last is the sum
    x = along(c, "along the residual past attention", c.attention_residual_is_normed ? read_by_attention : x) +
        show(name + ".attention", times(o.flatten(2), weights("o.weight"))) * c.residual_scale;
    const at::Tensor read = along(c, "through the MLP's input", c.mlp_input == Input::after_attention ? x : before);
    const at::Tensor inner = curve(times(normed(read, block("norm_mlp.weight"), c), block("mlp.fc1.weight")), c.mlp);
    if (c.mlp_residual_is_normed) x = normed(x, block("norm_mlp.weight"), c);
    x = along(c, "along the residual past the MLP", x) +
        show(name + ".mlp", times(inner, block("mlp.fc2.weight"))) * c.residual_scale;
    show(name, x);
  }
  const at::Tensor last = show("norm", normed(x, m.parameters.at("norm.weight"), c));
  pass.logits = show("logits", times(c.head_reads_stream ? x : last, m.parameters.at("head.weight")));
  return pass;
}

}  // namespace

std::map<std::string, std::vector<std::int64_t>> parameter_shapes(const ModelConfig& c) {
  std::map<std::string, std::vector<std::int64_t>> all = {
      {"embedding.weight", {c.vocab, c.dim}}, {"norm.weight", {c.dim}}, {"head.weight", {c.vocab, c.dim}}};
  const std::int64_t hidden = std::max<std::int64_t>(1, c.d_k / 2);
  for (std::int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string block = fmt::format("layers.{}.", layer), attention = block + "attention.";
    all[block + "norm_attention.weight"] = all[block + "norm_mlp.weight"] = {c.dim};
    all[block + "mlp.fc1.weight"] = {4 * c.dim, c.dim};
    all[block + "mlp.fc2.weight"] = {c.dim, 4 * c.dim};
    all[attention + "q.weight"] = {c.n_heads * c.d_k, c.dim};
    all[attention + "o.weight"] = {c.dim, c.n_heads * c.d_v};
    for (const std::string branch : {"cmp", "sel", "win"}) {
      all[attention + "k_" + branch + ".weight"] = {c.n_kv_groups * c.d_k, c.dim};
      all[attention + "v_" + branch + ".weight"] = {c.n_kv_groups * c.d_v, c.dim};
    }
    all[attention + "gate.fc1.weight"] = {hidden, c.d_k};
    all[attention + "gate.fc1.bias"] = {hidden};
    all[attention + "gate.fc2.weight"] = {3, hidden};
    all[attention + "gate.fc2.bias"] = {3};
    if (c.phi != nsa::Phi::mlp) continue;
    for (const auto& [phi, D] : {std::pair{"phi_k.", c.d_k}, std::pair{"phi_v.", c.d_v}}) {
      all[attention + phi + "position"] = {c.nsa.l, D};
      all[attention + phi + "fc1.weight"] = {D, c.nsa.l * D};
      all[attention + phi + "fc2.weight"] = {D, D};
    }
  }
  return all;
}

PlainModel in_precision(const PlainModel& model, at::ScalarType dtype) {
  PlainModel other = model;
  for (auto& [name, value] : other.parameters) value = value.detach().to(dtype).clone().requires_grad_();
  other.angles = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return other;
}

at::Tensor Pass::stage(const std::string& name) const {
  const auto found = std::find_if(stages.begin(), stages.end(), [&](const auto& s) { return s.first == name; });
  return found == stages.end() ? at::Tensor() : found->second;
}

Pass forward(const PlainModel& model, const at::Tensor& tokens, const Documents& documents,
             const std::vector<at::Tensor>& blocks) {
  return through(model, tokens, [&](const Weights& weights, std::size_t layer, const at::Tensor& x) {
    return attention(model, weights, x, documents, blocks.empty() ? at::Tensor() : blocks.at(layer));
  });
}

Pass loss(const PlainModel& model, const at::Tensor& tokens, const Documents& documents,
          const std::vector<at::Tensor>& blocks) {
  const std::int64_t S = tokens.size(1) - 1;
  Pass pass = forward(model, tokens.slice(1, 0, S), documents, blocks);
  const at::Tensor logits = pass.logits.to(wide(pass.logits));
  at::Tensor next = tokens.slice(1, 1);
  if (model.constants.targets_by_column) next = next.t().reshape(next.sizes());
  const double smoothing = model.constants.smoothing;
  at::Tensor surprise = logits.logsumexp(-1) - logits.gather(2, next.unsqueeze(2)).squeeze(2);  // [B,S]
  if (smoothing != 0) surprise = (1 - smoothing) * surprise + smoothing * (logits.logsumexp(-1) - logits.mean(-1));
  at::Tensor counts = at::ones({S}, tokens.options().dtype(at::kBool));
  std::int64_t begin = 0;
  for (const std::int64_t length : documents) {
    if (begin > 0 && begin <= S) counts[begin - 1] = false;
    begin += length;
  }
  pass.surprise = surprise.index({next.ne(model.constants.unpredicted).logical_and(counts)});
  pass.loss = pass.surprise.mean();
  pass.stages.emplace_back("loss", pass.loss);
  return pass;
}

at::Tensor block_scores(const at::Tensor& q, const at::Tensor& k_cmp, const ModelConfig& config) {
  const at::NoGradGuard no_grad;
  const std::int64_t S = q.size(1);
  const at::Tensor seen = complete_at(places(S, q), k_cmp.size(1), config.nsa);
  const at::Tensor p = probabilities(q.to(at::kDouble), k_cmp.to(at::kDouble), seen, {});
  return importance(p, config.nsa, choosable_blocks(config.nsa, S));
}

PlainDecoder::PlainDecoder(PlainModel model)
    : model_(std::move(model)), caches_(static_cast<std::size_t>(model_.config.n_layers)) {}

Pass PlainDecoder::step(const at::Tensor& tokens, const std::vector<at::Tensor>& blocks) {
  const at::NoGradGuard no_grad;
  const Geometry& g = model_.config.nsa;
  const std::int64_t t = length_++;
  const auto remember = [](at::Tensor& cache, const at::Tensor& rows) {
    if (rows.defined()) cache = cache.defined() ? at::cat({cache, rows}, 1) : rows;
  };
  return through(model_, tokens, [&](const Weights& weights, std::size_t layer, const at::Tensor& x) {
    const Projections p = project(model_, weights, x, t);
    Cache& cache = caches_[layer];
    remember(cache.k_cmp, p.k_cmp);
    remember(cache.v_cmp, p.v_cmp);
    remember(cache.k_sel, p.k_sel);
    remember(cache.v_sel, p.v_sel);
    remember(cache.k_win, p.k_win);
    remember(cache.v_win, p.v_win);
    if (p.k_cmp.defined()) {
      const bool whole = t + 1 >= g.l && (t + 1 - g.l) % g.d == 0;  // a block ends with this token
      const auto last = [&](const at::Tensor& rows) { return rows.slice(1, whole ? t + 1 - g.l : t + 1); };
      remember(cache.k_blocks, compressed(model_, weights, "phi_k", last(cache.k_cmp)));
      remember(cache.v_blocks, compressed(model_, weights, "phi_v", last(cache.v_cmp)));
    }
    Stages stages = {{"gates", p.gates}, {"q", p.q}};
    const Sources s{cache.k_blocks, cache.v_blocks, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win};
    for (auto& stage :
         attended(model_, p, s, at::full({1}, t, tokens.options()), blocks.empty() ? at::Tensor() : blocks.at(layer)))
      stages.push_back(std::move(stage));
    return stages;
  });
}

}  // namespace suites::oracle
