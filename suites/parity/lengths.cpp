// Attention as it trains, shape by shape: the model's own heads and widths, the flags' own way, the choice of blocks
// its own, from the keys that are compressed to the gated sum. Values and gradients against fp64, tile by tile. What is
// wrong at one length, in one sequence of a batch, in one document, in one head or by 2 % stands here.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "nsa/call.hpp"
#include "nsa/reference/reference.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/selection.hpp"
#include "suites/oracle/tiles.hpp"
#include "suites/parity/cases.hpp"
#include "suites/parity/documents.hpp"
#include "suites/parity/mistakes.hpp"
#include "suites/probes/lengths.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using Tensors = std::vector<at::Tensor>;

const std::vector<std::string> kInputs = {"q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates"};
const std::vector<std::string> kStages = {"compressed k", "compressed v", "cmp.o", "sel.o", "win.o"};

// The products of one group and length in fp64, of which the reference keeps a dozen.
constexpr std::int64_t kMostScores = std::int64_t{1} << 28;
// Beyond so many products in all, three sequences of a batch stand for the rest.
constexpr std::int64_t kMostScoresOfABatch = std::int64_t{1} << 27;
// Two scores tie within this share of the row's largest: the products of a kernel are summed in fp32, in its order.
constexpr double kTieAtLength = 1e-4;

struct Problem {
  const nsa::ModelConfig& model;
  at::Tensor upstream;
  Tensors inputs;  // kInputs, all of [B,S,heads,width] but the gates, [B,S,G,3]
  nsa::CuSeqlens cu_seqlens;
  std::optional<nsa::PhiWeights> phi_k, phi_v;
};

Problem make_problem(const nsa::ModelConfig& m, const AttentionPoint& point, at::Device device, std::uint64_t seed) {
  const at::ScalarType dtype = nsa::storage_type(point.precision);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto draw = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::TensorOptions(at::kDouble)).to(dtype).to(device);
  };
  const auto heads = [&](std::int64_t count, std::int64_t width) { return draw({point.B, point.S, count, width}); };
  Problem p{m, heads(m.n_heads, m.d_v), {heads(m.n_heads, m.d_k)}, {}, {}, {}};
  for (int branch = 0; branch < 3; ++branch) {
    p.inputs.push_back(heads(m.n_kv_groups, m.d_k));
    p.inputs.push_back(heads(m.n_kv_groups, m.d_v));
  }
  p.inputs.push_back(at::softmax(heads(m.n_kv_groups, 3).to(nsa::accumulation_type(dtype)), -1));
  if (!point.documents.empty()) p.cu_seqlens = cumulative(point.documents);
  if (m.phi == nsa::Phi::mlp) {
    const auto weights = [&](std::int64_t D) {
      const std::int64_t l = m.nsa.l;
      const double width = std::sqrt(static_cast<double>(D));
      return nsa::PhiWeights{draw({l, D}), draw({D, l * D}) / (width * std::sqrt(static_cast<double>(l))),
                             draw({D, D}) / width};
    };
    p.phi_k = weights(m.d_k);
    p.phi_v = weights(m.d_v);
  }
  return p;
}

struct Result {
  at::Tensor o, blocks;
  std::map<std::string, at::Tensor> stages;  // kStages
  Tensors gradients;                         // kInputs; undefined where nothing depends on it
};

Tensors leaves_of(const Problem& p, at::ScalarType dtype) {
  Tensors leaves;
  for (const at::Tensor& t : p.inputs) {
    const auto type = dtype == at::kDouble ? at::kDouble : t.scalar_type();
    leaves.push_back(t.to(type).detach().clone().requires_grad_());
  }
  return leaves;
}

void differentiate(Result& result, const at::Tensor& o, const Tensors& leaves, const at::Tensor& upstream) {
  result.o = o.detach();
  result.gradients = torch::autograd::grad({o}, leaves, {upstream.to(o.scalar_type())}, std::nullopt, false,
                                           /*allow_unused=*/true);
}

// As a training step runs it. `watched` also keeps the stages.
Result run(const Problem& p, const nsa::Ops& ops, at::ScalarType dtype, bool watched) {
  const at::AutoGradMode gradients(true);
  const Tensors in = leaves_of(p, dtype);
  Result result;
  const nsa::Compressed kv = ops.compress({in[1], in[2], p.model.nsa, p.cu_seqlens, p.phi_k, p.phi_v});
  nsa::AttendArgs args{in[0], kv, in[3], in[4], in[5], in[6], in[7], p.model.nsa, p.cu_seqlens};
  if (watched) {
    result.stages = {{"compressed k", kv.k.detach()}, {"compressed v", kv.v.detach()}};
    args.observe = [&](std::string_view stage, const at::Tensor& value) {
      if (stage == "blocks")
        result.blocks = value;
      else
        result.stages[std::string(stage)] = value.detach();
    };
  }
  differentiate(result, ops.attend(args), in, p.upstream);
  return result;
}

// One sequence, or one document of it, and one group of its heads: none of them sees another.
Problem part_of(const Problem& p, std::int64_t row, std::int64_t begin, std::int64_t end, std::int64_t group) {
  const std::int64_t h = p.model.n_heads / p.model.n_kv_groups;
  const auto cut = [&](const at::Tensor& t, std::int64_t heads) {
    return t.narrow(0, row, 1).narrow(1, begin, end - begin).narrow(2, group * heads, heads);
  };
  Problem one{p.model, cut(p.upstream, h), {cut(p.inputs[0], h)}, {}, p.phi_k, p.phi_v};
  for (std::size_t i = 1; i < p.inputs.size(); ++i) one.inputs.push_back(cut(p.inputs[i], 1));
  return one;
}

std::optional<nsa::PhiWeights> in_dtype(const std::optional<nsa::PhiWeights>& w, at::ScalarType dtype) {
  if (!w) return w;
  return nsa::PhiWeights{w->position.to(dtype), w->fc1.to(dtype), w->fc2.to(dtype)};
}

// What any computation loses that keeps 16 bits, as the naive one of autograd does not: O is rounded before the
// backward pass takes each row's sum of dO O from it, and P and dS are rounded before they are multiplied. It is
// little, and much where a row's terms cancel: two keys of which one has nearly all weight, or compressed keys that
// have most in common.
struct KeptIn16Bits {
  at::ScalarType dtype;
  at::Tensor q, upstream;  // fp64, [1,S,h,D]
  at::Tensor dq;           // of the branches so far

  [[nodiscard]] at::Tensor round(const at::Tensor& x) const { return x.to(dtype).to(at::kDouble); }
  // Adds a branch's share of dq; gives its dk and dv. `attend`: its outputs by values for the keys.
  std::pair<at::Tensor, at::Tensor> branch(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& gate,
                                           const std::function<at::Tensor(const at::Tensor& values)>& attend) {
    const at::Tensor k = keys.detach().to(at::kDouble), v = values.detach().to(at::kDouble);
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
    const std::int64_t N = k.size(1);
    // Weights are the outputs for values of which each is one key's own.
    const at::Tensor P = attend(at::eye(N, k.options()).view({1, N, 1, N})).squeeze(0).transpose(0, 1);  // [h,S,N]
    const at::Tensor dO = (gate.detach().to(at::kDouble).unsqueeze(-1) * upstream).squeeze(0).transpose(0, 1);
    const at::Tensor v_rows = v.select(2, 0).squeeze(0), k_rows = k.select(2, 0).squeeze(0);  // [N,D]
    const at::Tensor sums = (dO * round(at::matmul(P, v_rows))).sum(-1, /*keepdim=*/true);
    const at::Tensor dS = round(P * (at::matmul(dO, v_rows.t()) - sums));
    const at::Tensor of_q = at::matmul(dS, k_rows).transpose(0, 1).unsqueeze(0) * scale;
    dq = dq.defined() ? dq + of_q : of_q;
    const at::Tensor q_heads = q.squeeze(0).transpose(0, 1);
    const auto of_keys = [&](const at::Tensor& weights, const at::Tensor& rows) {
      return at::matmul(weights.transpose(1, 2), rows).sum(0).view({1, N, 1, -1}).to(dtype);
    };
    return {of_keys(dS, q_heads * scale), of_keys(round(P), dO)};
  }
};

// The gradients of q, keys and values of `result`, as they are where O, P and dS are kept in 16 bits.
void keep_in_16_bits(Result& result, const Problem& p, const Tensors& in, const at::Tensor& blocks) {
  const nsa::Geometry& g = p.model.nsa;
  const at::ScalarType dtype = in[0].scalar_type();
  KeptIn16Bits kept{dtype, in[0].detach().to(at::kDouble), p.upstream.to(at::kDouble), {}};
  const auto gate = [&](std::int64_t branch) { return in[7].select(3, branch); };
  const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
  std::tie(result.gradients[3], result.gradients[4]) =
      kept.branch(in[3], in[4], gate(1), [&](const at::Tensor& values) {
        return nsa::reference::attend_selected({kept.q, wide(in[3]), values, blocks, g, {}}).o;
      });
  std::tie(result.gradients[5], result.gradients[6]) =
      kept.branch(in[5], in[6], gate(2), [&](const at::Tensor& values) {
        return nsa::reference::attend_window({kept.q, wide(in[5]), values, g, {}}).o;
      });
  const nsa::Compressed kv =
      nsa::reference::compress({in[1], in[2], g, {}, in_dtype(p.phi_k, dtype), in_dtype(p.phi_v, dtype)});
  if (kv.k.size(1) > 0) {
    const auto [dk, dv] = kept.branch(kv.k, kv.v, gate(0), [&](const at::Tensor& values) {
      return nsa::reference::attend_compressed({kept.q, {wide(kv.k), values}, g, {}}).o;
    });
    const Tensors of_inputs = torch::autograd::grad({kv.k, kv.v}, {in[1], in[2]}, {dk, dv});
    result.gradients[1] = of_inputs[0];
    result.gradients[2] = of_inputs[1];
  }
  result.gradients[0] = kept.dq.to(dtype);
}

// The parts of the reference and their sum (Eq 5) put together here: the product's own way from part to part
// (nsa/attend.cpp) takes no part in it.
Result reference_of(const Problem& p, const at::Tensor& blocks, at::ScalarType dtype) {
  const at::AutoGradMode gradients(true);
  const Tensors in = leaves_of(p, dtype);
  const nsa::Geometry& g = p.model.nsa;
  const nsa::Compressed kv =
      nsa::reference::compress({in[1], in[2], g, {}, in_dtype(p.phi_k, dtype), in_dtype(p.phi_v, dtype)});
  const Tensors branches = {nsa::reference::attend_compressed({in[0], kv, g, {}}).o,
                            nsa::reference::attend_selected({in[0], in[3], in[4], blocks, g, {}}).o,
                            nsa::reference::attend_window({in[0], in[5], in[6], g, {}}).o};
  at::Tensor o;
  for (std::int64_t branch = 0; branch < 3; ++branch) {
    const at::Tensor share = in[7].select(3, branch).unsqueeze(-1) * branches[static_cast<std::size_t>(branch)];
    o = o.defined() ? o + share : share;
  }
  Result result;
  result.stages = {{"compressed k", kv.k.detach()},
                   {"compressed v", kv.v.detach()},
                   {"cmp.o", branches[0].detach()},
                   {"sel.o", branches[1].detach()},
                   {"win.o", branches[2].detach()}};
  differentiate(result, o.to(branches[0].scalar_type()), in, p.upstream);
  for (std::size_t i = 0; i < in.size(); ++i)
    if (!result.gradients[i].defined()) result.gradients[i] = at::zeros_like(in[i]);
  if (c10::isReducedFloatingType(dtype)) keep_in_16_bits(result, p, in, blocks);
  return result;
}

Result joined(const std::vector<Result>& parts, std::int64_t dimension) {
  const auto cat = [&](const auto& of) {
    Tensors tensors;
    for (const Result& part : parts) tensors.push_back(of(part));
    return at::cat(tensors, dimension);
  };
  Result all;
  all.o = cat([](const Result& r) { return r.o; });
  for (const std::string& stage : kStages) all.stages[stage] = cat([&](const Result& r) { return r.stages.at(stage); });
  for (std::size_t i = 0; i < kInputs.size(); ++i)
    all.gradients.push_back(cat([&](const Result& r) { return r.gradients[i]; }));
  return all;
}

using Range = std::pair<std::int64_t, std::int64_t>;

// The sequences `rows`, document by document and group by group: no batch, no packing, and [S,S] products stay small.
Result reference(Context& context, const Problem& p, const std::vector<std::int64_t>& rows, const at::Tensor& blocks,
                 at::ScalarType dtype) {
  std::vector<Result> of_rows;
  for (const std::int64_t row : rows) {
    std::vector<Result> of_documents;
    for (const auto& [begin, end] : nsa::documents(p.cu_seqlens, p.upstream.size(1))) {
      if (begin == end) continue;
      std::vector<Result> of_groups;
      for (std::int64_t group = 0; group < p.model.n_kv_groups; ++group) {
        const Problem part = part_of(p, row, begin, end, group);
        of_groups.push_back(
            reference_of(part, blocks.narrow(0, row, 1).narrow(1, begin, end - begin).narrow(2, group, 1), dtype));
        context.progress();
      }
      of_documents.push_back(joined(of_groups, 2));
    }
    of_rows.push_back(joined(of_documents, 1));
  }
  return joined(of_rows, 0);
}

// The backend's choice by the scores of fp64 over its own compressed keys, which are compared for themselves.
void judge_choice(Context& context, const Problem& p, const std::vector<std::int64_t>& rows, const Result& watched,
                  const std::string& name) {
  const nsa::Geometry& g = p.model.nsa;
  std::int64_t queries = 0, unjustified = 0, blocks_before = 0;
  std::string first_fault;
  harness::Json evidence = harness::Json::object();
  for (const auto& [begin, end] : nsa::documents(p.cu_seqlens, p.upstream.size(1))) {
    const std::int64_t count = nsa::compressed_blocks(g, end - begin);
    for (const std::int64_t row : begin == end ? std::vector<std::int64_t>{} : rows) {
      for (std::int64_t group = 0; group < p.model.n_kv_groups; ++group) {
        const Problem part = part_of(p, row, begin, end, group);
        const at::Tensor k = watched.stages.at("compressed k").narrow(0, row, 1).narrow(1, blocks_before, count);
        const at::Tensor probabilities = nsa::reference::compressed_probabilities(
            part.inputs[0].to(at::kDouble), k.narrow(2, group, 1).to(at::kDouble), g);
        const at::Tensor scores = nsa::reference::importance(probabilities, g, 1, end - begin);
        const at::Tensor chosen = watched.blocks.narrow(0, row, 1).narrow(1, begin, end - begin).narrow(2, group, 1);
        const oracle::SelectionVerdict verdict =
            oracle::judge_selection({chosen, nsa::reference::choose(scores, g), scores, g, kTieAtLength});
        queries += verdict.queries;
        unjustified += verdict.unjustified;
        context.progress();
        if (verdict.good() || !first_fault.empty()) continue;
        first_fault = fmt::format("sequence {}, document at {}, group {}: {}", row, begin, group, verdict.first_fault);
        evidence = verdict.first;
        evidence.update({{"sequence", row}, {"document_begins", begin}, {"group", group}});
        const auto of_document = [&](const at::Tensor& t) { return t.narrow(0, row, 1).narrow(1, begin, end - begin); };
        const std::string as_if = oracle::mistake_in_choice(
            of_document(watched.blocks), of_document(p.inputs[0]),
            watched.stages.at("compressed k").narrow(0, row, 1).narrow(1, blocks_before, count), g);
        if (as_if.empty()) continue;
        evidence["as_if"] = as_if;
        first_fault += told(as_if);
      }
    }
    blocks_before += count;
  }
  context.expect("every choice of blocks is justified by the scores", unjustified == 0,
                 fmt::format("{}: {} of {} queries chose blocks that their scores do not justify; {}", name,
                             unjustified, queries, first_fault),
                 codes::kSelectionDiffers, evidence);
}

std::vector<std::int64_t> rows_to_compare(const nsa::ModelConfig& model, const AttentionPoint& point) {
  if (point.B <= 3 || point.B * model.n_heads * point.S * point.S <= kMostScoresOfABatch) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(point.B));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  return {0, point.B / 2, point.B - 1};
}

std::string name_of(const AttentionPoint& point) {
  std::string name = fmt::format("attend[S={}", point.S);
  if (point.B > 1) name += fmt::format(",B={}", point.B);
  if (!point.documents.empty()) name += fmt::format(",documents={}", fmt::join(point.documents, "+"));
  return name + "]";
}

}  // namespace

void attention_at(Context& context, const Subject& subject, const AttentionPoint& point) {
  nsa::ModelConfig model = subject.config(context).model;
  if (point.geometry) model.nsa = *point.geometry;
  const at::ScalarType dtype = nsa::storage_type(point.precision);
  if (model.n_heads / model.n_kv_groups * point.S * point.S > kMostScores)
    throw harness::Skipped{"too_long",
                           fmt::format("the fp64 reference of {} tokens and {} heads a group would hold more "
                                       "than {} scores",
                                       point.S, model.n_heads / model.n_kv_groups, kMostScores)};
  const nsa::EffectiveFlags flags = subject.flags();
  const nsa::Call call = nsa::call_of(model, point.B, point.S, point.precision, device_of(context), /*training=*/true,
                                      !point.documents.empty());
  const nsa::Ops ops = subject.ops(flags, call);
  const nsa::Choice way = nsa::route(flags, call)[nsa::Op::attend];
  context.fact("attend", fmt::format("{}/{} ({})", nsa::to_string(way.backend),
                                     ops.way == nsa::AttendWay::in_one ? "in_one" : "in_parts", way.why));

  const std::string name = name_of(point);
  const Problem p = make_problem(model, point, device_of(context), context.seed("inputs"));
  context.phase("as it trains");
  const Result got = run(p, ops, dtype, false);
  context.phase("watched");
  const Result watched = run(p, ops, dtype, true);
  context.expect("watching attention changes no bit of it", at::equal(got.o, watched.o),
                 fmt::format("{}: the output is another one when it is watched", name), codes::kIdentity,
                 {{"S", point.S}, {"B", point.B}});
  const std::vector<std::int64_t> rows = rows_to_compare(model, point);
  context.phase("choice of blocks");
  judge_choice(context, p, rows, watched, name);
  context.phase("reference in fp64");
  const Result exact = reference(context, p, rows, watched.blocks, at::kDouble);
  context.phase("reference in the backend's dtype");
  const Result naive = reference(context, p, rows, watched.blocks, dtype);

  const at::Tensor picked = at::tensor(rows, at::kLong).to(device_of(context));
  const auto compare = [&](const std::string& what, const at::Tensor& value, const at::Tensor& wanted,
                           const at::Tensor& roughly, bool gradient) {
    const at::Tensor of_rows = value.defined() ? value.index_select(0, picked) : value;
    const bool of_queries = gradient && what == kInputs.front();
    (void)expect_good(context, oracle::judge_tiles({of_rows, wanted, roughly}, dtype, of_queries),
                      {name, what, gradient});
  };
  for (const std::string& stage : kStages)
    compare(stage, watched.stages.at(stage), exact.stages.at(stage), naive.stages.at(stage), false);
  compare("o", got.o, exact.o, naive.o, false);
  for (std::size_t i = 0; i < kInputs.size(); ++i) {
    at::Tensor value = got.gradients[i];
    // Autograd's way to say zero: at these lengths there may be no compressed block at all.
    if (!value.defined() && exact.gradients[i].count_nonzero().item<std::int64_t>() == 0)
      value = at::zeros_like(p.inputs[i]);
    compare(kInputs[i], value, exact.gradients[i], naive.gradients[i], true);
  }
}

void attention_at_boundaries(Context& context, const Subject& subject) {
  const nsa::Config config = subject.config(context);
  for (const std::int64_t S : boundary_lengths(config.model.nsa, {}))
    attention_at(context, subject, {.S = S, .precision = config.train.precision});
}

void attention_of_another_geometry(Context& context, const Subject& subject) {
  const nsa::Config config = subject.config(context);
  const nsa::Geometry wide{}, narrow{.l = 16, .d = 8, .l_sel = 32, .n_sel = 4, .w = 96};
  AttentionPoint point{.precision = config.train.precision, .geometry = config.model.nsa.w < wide.w ? wide : narrow};
  point.S = 2 * point.geometry->w + point.geometry->l_sel + 3;
  context.fact("geometry", {{"l", point.geometry->l},
                            {"d", point.geometry->d},
                            {"l_sel", point.geometry->l_sel},
                            {"n_sel", point.geometry->n_sel},
                            {"w", point.geometry->w}});
  attention_at(context, subject, point);
}

void attention_in_training(Context& context, const Subject& subject) {
  const nsa::TrainConfig train = subject.config(context).train;
  AttentionPoint point{.S = train.seq_len, .precision = train.precision, .B = train.batch_size};
  if (train.packed) {
    const std::int64_t first = (point.S - 1) / 3;
    point.documents = {first, 0, 1, point.S - first - 1};
  }
  attention_at(context, subject, point);
}

void attention_packed(Context& context, const Subject& subject) {
  const nsa::Config config = subject.config(context);
  AttentionPoint point{.precision = config.train.precision, .documents = document_lengths(config.model.nsa)};
  point.S = std::accumulate(point.documents.begin(), point.documents.end(), std::int64_t{0});
  attention_at(context, subject, point);
}

}  // namespace suites::parity_cases
