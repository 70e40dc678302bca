// Relations that the whole model keeps whatever its weights are, by the forward pass and by decoding: no oracle, and
// the projections, RoPE, gates and the output projection take part. All in fp64.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "nsa/model/rope.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/compare.hpp"
#include "suites/parity/cases.hpp"
#include "suites/parity/ways.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using harness::Json;

constexpr double kExact = 1e-10;  // of the logits' RMS
constexpr double kShift = 1e-5;   // angles are fp32, whatever the model's type

struct ModelBench {
  Context& context;
  const Subject& subject;

  [[nodiscard]] nsa::Config config() const { return shallow(context, subject); }
  [[nodiscard]] Prepared make(const nsa::Config& config) const { return make(config, subject.flags()); }
  [[nodiscard]] Prepared make(const nsa::Config& config, const nsa::EffectiveFlags& flags) const {
    return prepare(context, subject, config, nsa::Precision::fp64, flags);
  }
  void expect_near(const std::string& what, const at::Tensor& value, const at::Tensor& wanted, double relative,
                   std::string_view code, const Json& more = Json::object()) const {
    oracle::Verdict verdict = oracle::near(value, wanted, 0);
    const double scale = rms(wanted);
    verdict.bound = relative * scale;
    Json evidence = verdict.evidence();
    evidence["identity"] = what;
    evidence.update(more);
    context.metric(what + ": error relative to RMS", verdict.error / scale, "");
    context.expect(what, verdict.good(),
                   fmt::format("{}: off by {:.3g} of the RMS at [{}]; allowed {:.3g}", what, verdict.error / scale,
                               fmt::join(verdict.index, ", "), relative),
                   code, evidence);
  }
};

// All but the last two selection blocks in a prefill, the rest step by step.
at::Tensor decoded(const ModelBench& bench, Prepared& prepared, const at::Tensor& tokens) {
  nsa::decode::Decoder decoder = bench.subject.decoder(prepared.instance);
  const std::int64_t P = tokens.size(1) - 2 * prepared.config.model.nsa.l_sel;  // length_of() is longer
  return decode(bench.context, decoder, tokens, P).logits;
}

// ---- relative shift ------------------------------------------------------------------------------------------------

// The forward pass as if the text began at position `start`.
at::Tensor forward_from(nsa::LanguageModelImpl& model, const at::Tensor& tokens, std::int64_t start) {
  const std::int64_t S = tokens.size(1);
  const at::Tensor rotations = nsa::rope_rotations(start + S, model.config.d_k, model.config.rope_base,
                                                   model.runtime->flags.rope_scale, {}, model.head->weight.options())
                                   .narrow(0, start, S);
  return model.through(tokens, [&](nsa::BlockImpl& block, std::int64_t, const nsa::Residual& x) {
    return block.forward(x, rotations, {});
  });
}

// With everything selected and a window over all, so that no choice can tip over: what is left is attention and RoPE.
// Learned compression weighs the places of a block and is not shift-invariant: the mean is.
void relative_shift(const ModelBench& bench) {
  nsa::Config config = bench.config();
  nsa::Geometry& g = config.model.nsa;
  const std::int64_t S = std::min(length_of(g), 4 * g.l_sel + 3);
  g.n_sel = std::max<std::int64_t>(3, nsa::selection_blocks(g, S));
  g.w = S;
  config.model.phi = nsa::Phi::avg;
  Prepared prepared = bench.make(config);
  const at::Tensor tokens = prompt(bench.context, config, {2, S});
  const at::Tensor still = forward_from(prepared.model(), tokens, 0);
  bench.expect_near("a start at position 0 = the forward pass", still, prepared.model().forward(tokens), kExact,
                    codes::kRelativeShift);
  for (const std::int64_t a : {std::int64_t{1}, g.l, 2 * g.l_sel + 1}) {
    bench.context.phase(fmt::format("text from position {}", a));
    bench.expect_near(fmt::format("logits of a text from position {} = from position 0", a),
                      forward_from(prepared.model(), tokens, a), still, kShift, codes::kRelativeShift);
  }
  for (const auto type : {at::kDouble, at::kFloat}) {
    const ShiftError error =
        shift_error(nsa::rotate, config.model, device_of(bench.context), type, bench.context.seed("shift"));
    bench.context.expect_at_most(
        fmt::format("attention logits (t,j) = (t+a,j+a), {}: error relative to RMS", c10::toString(type)),
        error.relative, kShift, "", codes::kRelativeShift, {{"query", error.t}, {"key", error.j}, {"shift", error.a}});
  }
}

// ---- weights moved about --------------------------------------------------------------------------------------------

nsa::NsaAttentionImpl& attention(nsa::LanguageModelImpl& model, std::size_t layer) {
  return *model.layers->ptr<nsa::BlockImpl>(layer)->attention;
}

// Rows of `weight` by heads of `width`, in another order.
void reorder_rows(const at::Tensor& weight, const at::Tensor& order, std::int64_t width) {
  weight.copy_(weight.unflatten(0, {-1, width}).index_select(0, order).flatten(0, 1));
}
void reorder_columns(const at::Tensor& weight, const at::Tensor& order, std::int64_t width) {
  weight.copy_(weight.unflatten(1, {-1, width}).index_select(1, order).flatten(1, 2));
}

using Change = std::function<void(nsa::NsaAttentionImpl&, const nsa::ModelConfig&)>;

// Heads of a group reversed, in the projection of the queries and in the output projection.
void permute_heads(nsa::NsaAttentionImpl& a, const nsa::ModelConfig& m) {
  const at::Tensor heads = at::arange(m.n_heads, a.q->weight.options().dtype(at::kLong).requires_grad(false));
  const at::Tensor order = heads.view({m.n_kv_groups, m.heads_per_group()}).flip(1).flatten();
  reorder_rows(a.q->weight, order, m.d_k);
  reorder_columns(a.o->weight, order, m.d_v);
}

// Groups reversed: queries, keys and values of every branch, and the output projection.
void permute_groups(nsa::NsaAttentionImpl& a, const nsa::ModelConfig& m) {
  const auto options = a.q->weight.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor groups = at::arange(m.n_kv_groups, options).flip(0);
  const at::Tensor heads = at::arange(m.n_heads, options).view({m.n_kv_groups, -1}).flip(0).flatten();
  reorder_rows(a.q->weight, heads, m.d_k);
  reorder_columns(a.o->weight, heads, m.d_v);
  for (const auto& k : {a.k_cmp, a.k_sel, a.k_win}) reorder_rows(k->weight, groups, m.d_k);
  for (const auto& v : {a.v_cmp, a.v_sel, a.v_win}) reorder_rows(v->weight, groups, m.d_v);
}

void scale_values(nsa::NsaAttentionImpl& a, const nsa::ModelConfig&) {
  for (const auto& v : {a.v_cmp, a.v_sel, a.v_win}) v->weight.mul_(-4);
  a.o->weight.mul_(-0.25);
}

// Softmax does not know what is added to all logits: not by more than the largest number that exp can hold either.
void shift_gates(nsa::NsaAttentionImpl& a, const nsa::ModelConfig& m) { a.gate->fc2->bias.add_(1024 * m.gate_tau); }

nsa::Config with_mean_compression(nsa::Config config) {
  config.model.phi = nsa::Phi::avg;
  return config;
}
nsa::Config with_softmax_gates(nsa::Config config) {
  config.model.gate = nsa::GateActivation::softmax;
  return config;
}

void same_logits(const ModelBench& bench, const std::string& what, const nsa::Config& config, const Change& change) {
  Prepared prepared = bench.make(config);
  const at::Tensor tokens = prompt(bench.context, config, {2, length_of(config.model.nsa)});
  const at::Tensor before = prepared.model().forward(tokens);
  for (std::size_t i = 0; i < prepared.model().layers->size(); ++i)
    change(attention(prepared.model(), i), config.model);
  bench.context.phase("changed, forward");
  bench.expect_near(what + ", forward", prepared.model().forward(tokens), before, kExact, codes::kModelIdentity);
  bench.context.phase("changed, prefill and steps");
  bench.expect_near(what + ", decoding", decoded(bench, prepared, tokens), before, kExact, codes::kModelIdentity);
}

// ---- a branch alone -------------------------------------------------------------------------------------------------

// Decoding keeps for a branch what that branch reads; under a forced one it may keep less, and must not too little.
void branch_alone(const ModelBench& bench) {
  using nsa::ForcedBranch;
  const nsa::Config config = bench.config();
  const at::Tensor tokens = prompt(bench.context, config, {2, length_of(config.model.nsa)});
  for (const auto& [name, branch] :
       {std::pair{"cmp", ForcedBranch::cmp}, {"sel", ForcedBranch::sel}, {"win", ForcedBranch::win}}) {
    nsa::EffectiveFlags flags = bench.subject.flags();
    flags.forced_branch = branch;
    bench.context.phase(std::string("branch ") + name);
    Prepared prepared = bench.make(config, flags);
    bench.expect_near(fmt::format("branch {} alone, decoding", name), decoded(bench, prepared, tokens),
                      prepared.model().forward(tokens), kExact, codes::kModelIdentity, {{"branch", name}});
  }
}

const std::map<std::string, void (*)(const ModelBench&)>& model_identities_by_name() {
  static const std::map<std::string, void (*)(const ModelBench&)> all = {
      {"branch_alone", branch_alone},
      {"gate_shift",
       [](const ModelBench& bench) {
         same_logits(bench, "one number added to all gate logits", with_softmax_gates(bench.config()), shift_gates);
       }},
      {"head_permutation",
       [](const ModelBench& bench) {
         same_logits(bench, "heads permuted inside their groups", bench.config(), permute_heads);
       }},
      {"group_permutation",
       [](const ModelBench& bench) { same_logits(bench, "groups permuted", bench.config(), permute_groups); }},
      {"relative_shift", relative_shift},
      // Learned compression is not linear in the values.
      {"value_scaling", [](const ModelBench& bench) {
         same_logits(bench, "values scaled, output scaled back", with_mean_compression(bench.config()), scale_values);
       }}};
  return all;
}

}  // namespace

ShiftError shift_error(const Rotate& turn, const nsa::ModelConfig& model, at::Device device, at::ScalarType type,
                       std::uint64_t seed) {
  constexpr std::int64_t kTokens = 32;
  const auto generator = at::detail::createCPUGenerator(seed);
  const auto draw = [&](std::int64_t heads) {
    return at::randn({1, kTokens, heads, model.d_k}, generator, at::kDouble).to(device, type);
  };
  const at::Tensor q = draw(model.n_heads), k = draw(model.n_kv_groups);
  const auto scores = [&](std::int64_t start) {
    const at::Tensor rotations = nsa::rope_rotations(start + kTokens, model.d_k, model.rope_base, 1.0, {}, q.options())
                                     .narrow(0, start, kTokens);
    const at::Tensor keys = turn(k, rotations).repeat_interleave(model.heads_per_group(), 2).to(at::kDouble);
    return at::einsum("bthd,bjhd->bhtj", {turn(q, rotations).to(at::kDouble), keys});
  };
  const at::Tensor still = scores(0);
  const double scale = rms(still);
  ShiftError worst;
  for (const std::int64_t a : {1, 7, 33}) {
    const at::Tensor error = (scores(a) - still).abs() / scale;
    const std::int64_t place = error.argmax().item<std::int64_t>();
    const double relative = error.flatten()[place].item<double>();
    if (relative <= worst.relative) continue;  // NaN is kept
    worst = {relative, a, place / kTokens % kTokens, place % kTokens};
    if (std::isnan(relative)) break;
  }
  return worst;
}

const std::vector<std::string>& model_identity_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, check] : model_identities_by_name()) all.push_back(name);
    return all;
  }();
  return names;
}

void model_identity(Context& context, const Subject& subject, const std::string& name) {
  const at::NoGradGuard no_grad;
  model_identities_by_name().at(name)({context, subject});
}

}  // namespace suites::parity_cases
