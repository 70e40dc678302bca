#include "suites/parity/mistakes.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "suites/oracle/rms.hpp"

namespace suites::parity_cases {

namespace {

using oracle::Curve;
using oracle::Documents;
using oracle::Heads;
using oracle::PlainModel;

struct Mistake {
  const char* stage;  // glob of the stage in which it shows first
  std::string what;
  std::function<void(PlainModel&, Documents&)> make;
};

using Constant = std::function<void(oracle::Constants&)>;
Mistake constant(const char* stage, std::string what, Constant change) {
  return {stage, std::move(what), [change](PlainModel& m, Documents&) { change(m.constants); }};
}
Mistake configured(const char* stage, std::string what, std::function<void(nsa::ModelConfig&)> change) {
  return {stage, std::move(what), [change](PlainModel& m, Documents&) { change(m.config); }};
}
Mistake flagged(const char* stage, std::string what, std::function<void(nsa::EffectiveFlags&)> change) {
  return {stage, std::move(what), [change](PlainModel& m, Documents&) { change(m.flags); }};
}

// In every layer the parameter `of` (".attention.k_sel.weight") is taken for `instead`, or all of it is `value`.
void take(PlainModel& m, const std::string& instead, const std::string& of) {
  for (std::int64_t layer = 0; layer < m.config.n_layers; ++layer) {
    const auto a = m.parameters.find(fmt::format("layers.{}{}", layer, instead)),
               b = m.parameters.find(fmt::format("layers.{}{}", layer, of));
    if (a != m.parameters.end() && b != m.parameters.end() && a->second.sizes() == b->second.sizes())
      a->second = b->second;
  }
}
void fill(PlainModel& m, const std::string& of, double value) {
  for (auto& [name, tensor] : m.parameters)
    if (name.ends_with(of)) tensor = at::full_like(tensor, value);
}
Mistake taken(const char* stage, std::string what, const std::string& instead, const std::string& of) {
  return {stage, std::move(what), [=](PlainModel& m, Documents&) { take(m, instead, of); }};
}

constexpr const char* kGates = "*.attention.gates";
constexpr const char* kQueries = "*.attention.q";
constexpr const char* kCmp = "*.attention.cmp.o";
constexpr const char* kSel = "*.attention.sel.o";
constexpr const char* kWin = "*.attention.win.o";

void add_norm(std::vector<Mistake>& all) {
  for (const char* stage : {kGates, "*.mlp", "norm"}) {
    for (const double eps : {1e-8, 1e-5, 1e-4, 1e-3, 1e-12, 0.0})
      all.push_back(constant(stage, fmt::format("RMSNorm adds {:g} under its root, not 1e-6", eps),
                             [=](auto& c) { c.norm_eps = eps; }));
    all.push_back(constant(stage, "the norm takes the mean away (LayerNorm), which RMSNorm does not",
                           [](auto& c) { c.norm_centres = true; }));
    all.push_back(
        constant(stage, "the norm's weight is taken for 1 + weight", [](auto& c) { c.norm_weight_offset = 1; }));
    all.push_back({stage, "the norm's weight is not applied", [](PlainModel& m, Documents&) {
                     for (const char* of : {"norm_attention.weight", "norm_mlp.weight", "norm.weight"}) fill(m, of, 1);
                   }});
  }
}

void add_gate(std::vector<Mistake>& all) {
  all.push_back(constant(kGates, "the gate reads the queries after RoPE, not before it",
                         [](auto& c) { c.gate_after_rope = true; }));
  all.push_back(constant(kGates,
                         "the gate of a group averages the queries of heads j, j + G, j + 2G ..., not those of the "
                         "group's own h neighbouring heads",
                         [](auto& c) { c.gate_heads = Heads::one_in_g; }));
  all.push_back(constant(kGates, "the gate of a group reads the queries of its first head, not their mean",
                         [](auto& c) { c.gate_heads = Heads::first; }));
  all.push_back(constant(kGates, "the gate of a group reads the sum of its heads' queries, not their mean",
                         [](auto& c) { c.gate_heads = Heads::sum; }));
  all.push_back(constant(kGates, "the gate's softmax runs over the groups, not over the three branches",
                         [](auto& c) { c.gate_over_groups = true; }));
  all.push_back(constant(kGates, "the gate's activation is GELU, not SiLU", [](auto& c) { c.gate = Curve::gelu; }));
  all.push_back(constant(kGates, "the gate's activation is ReLU, not SiLU", [](auto& c) { c.gate = Curve::relu; }));
  all.push_back(
      configured(kGates, "the gate's temperature (model.gate_tau) is not applied", [](auto& c) { c.gate_tau = 1; }));
  all.push_back(configured(kGates, "the gate's logits are multiplied by its temperature, not divided",
                           [](auto& c) { c.gate_tau = 1 / c.gate_tau; }));
  all.push_back(
      configured(kGates, "the gate's last step is the other of softmax and sigmoid than configured", [](auto& c) {
        const bool softmax = c.gate == nsa::GateActivation::softmax;
        c.gate = softmax ? nsa::GateActivation::sigmoid : nsa::GateActivation::softmax;
      }));
  for (const char* stage : {kGates, kQueries})
    all.push_back(constant(stage,
                           "the features of the projections are dealt out over the heads one by one (feature i to head "
                           "i mod heads), where a head has D neighbours",
                           [](auto& c) { c.features_one_in_h = true; }));
  for (const char* bias : {"gate.fc1.bias", "gate.fc2.bias"})
    all.push_back({kGates, fmt::format("{} is not added", bias), [=](PlainModel& m, Documents&) { fill(m, bias, 0); }});
}

void add_rope(std::vector<Mistake>& all) {
  // Queries of one document begin at position 0, which RoPE leaves alone; the keys part with them.
  const auto add = [&](std::string what, Constant change) {
    for (const char* stage : {kQueries, "*.attention.cmp.k"}) all.push_back(constant(stage, what, change));
  };
  add("RoPE turns pairs (i, i + D/2), not (2i, 2i + 1)", [](auto& c) { c.rope_pairs = oracle::Pairs::halves; });
  add("RoPE counts positions from 1, not from 0", [](auto& c) { c.rope_first = 1; });
  add("RoPE's positions are one too small", [](auto& c) { c.rope_first = -1; });
  add("RoPE turns the other way round", [](auto& c) { c.rope_turn = -1; });
  add("RoPE's frequencies are base^(-i/D), not base^(-2i/D)", [](auto& c) { c.rope_power = 1; });
  add("RoPE's frequencies are base^(-4i/D), not base^(-2i/D)", [](auto& c) { c.rope_power = 4; });
  add("RoPE's frequencies run to the base itself: base^(-2i/(D - 2)), not base^(-2i/D)",
      [](auto& c) { c.rope_span = 2; });
  all.push_back(constant(kQueries, "the queries are not turned by RoPE", [](auto& c) { c.rope_of_queries = false; }));
  all.push_back(
      constant("*.attention.cmp.k", "the keys are not turned by RoPE", [](auto& c) { c.rope_of_keys = false; }));
  for (const double base : {1e4, 5e5, 1e6})
    all.push_back(configured(kQueries, fmt::format("RoPE's base is {:g}, not the configured one", base),
                             [=](auto& c) { c.rope_base = base; }));
  all.push_back(flagged(kQueries, "NSA_ROPE_SCALE is not applied", [](auto& f) { f.rope_scale = 1; }));
  all.push_back(flagged(kQueries, "NSA_ROPE_SCALE multiplies positions, where it should divide them",
                        [](auto& f) { f.rope_scale = 1 / f.rope_scale; }));
  for (const auto& [type, name] : {std::pair{at::kBFloat16, "bf16"}, std::pair{at::kHalf, "fp16"}})
    all.push_back({kQueries, fmt::format("RoPE's positions and angles are computed in {}, not in fp32", name),
                   [type = type](PlainModel& m, Documents&) { m.angles = type; }});
}

void add_branches(std::vector<Mistake>& all) {
  for (const char* stage : {kCmp, kSel, kWin}) {
    all.push_back(constant(stage, "head i read the keys and values of group i mod G, not of its own group i / h",
                           [](auto& c) { c.queries_one_in_g = c.outputs_one_in_g = true; }));
    all.push_back(constant(stage,
                           "the query heads are divided as [h, G], not as [G, h]: group g gets the heads g, g + G, ... "
                           "instead of h neighbours",
                           [](auto& c) { c.queries_one_in_g = true; }));
    all.push_back(constant(stage, "the outputs of the heads are laid down as [h, G], not as [G, h]",
                           [](auto& c) { c.outputs_one_in_g = true; }));
    all.push_back({stage, "attention's scores are not divided by sqrt(Dk)", [](PlainModel& m, Documents&) {
                     m.constants.attention_scale = std::sqrt(static_cast<double>(m.config.d_k));
                   }});
    all.push_back({stage, "attention's scores are divided by Dk, not by sqrt(Dk)", [](PlainModel& m, Documents&) {
                     m.constants.attention_scale = 1 / std::sqrt(static_cast<double>(m.config.d_k));
                   }});
    all.push_back({stage, "attention's scores are divided by sqrt(Dv), not by sqrt(Dk)", [](PlainModel& m, Documents&) {
                     m.constants.attention_scale =
                         std::sqrt(static_cast<double>(m.config.d_k) / static_cast<double>(m.config.d_v));
                   }});
  }
  all.push_back(constant(kCmp, "a compressed block is seen one token before it is complete: the future leaks",
                         [](auto& c) { c.cmp_early = 1; }));
  all.push_back(constant(kCmp, "a compressed block is seen one token too late", [](auto& c) { c.cmp_early = -1; }));
  all.push_back({kCmp, "every compressed block is seen by every query: the future leaks",
                 [](PlainModel& m, Documents&) { m.constants.cmp_early = 1 << 30; }});
  all.push_back({kCmp, "a compressed block is seen as soon as it begins: the future leaks",
                 [](PlainModel& m, Documents&) { m.constants.cmp_early = m.config.nsa.l - 1; }});
  all.push_back(
      constant(kSel, "a query does not see its own token in the selected branch", [](auto& c) { c.sel_early = -1; }));
  all.push_back(constant(kSel, "a query sees the token after its own in the selected branch: the future leaks",
                         [](auto& c) { c.sel_early = 1; }));
  all.push_back(constant(kSel, "a query sees all tokens of its chosen blocks, later ones too: the future leaks",
                         [](auto& c) { c.sel_early = 1 << 30; }));
  for (const std::int64_t more : {1, -1})
    all.push_back(configured(kWin, fmt::format("the window holds w {} 1 tokens, not w", more > 0 ? "+" : "-"),
                             [=](auto& c) { c.nsa.w += more; }));
  for (const char* side : {"k", "v"})
    for (const auto& [own, stage] :
         {std::pair{"cmp", side[0] == 'k' ? "*.cmp.k" : "*.cmp.v"}, std::pair{"sel", kSel}, std::pair{"win", kWin}})
      for (const char* other : {"cmp", "sel", "win"})
        if (std::string_view(own) != other)
          all.push_back(taken(stage, fmt::format("{}_{} is computed by the weights of {}_{}", side, own, side, other),
                              fmt::format(".attention.{}_{}.weight", side, own),
                              fmt::format(".attention.{}_{}.weight", side, other)));
  for (const char* part : {"position", "fc1.weight", "fc2.weight"}) {
    all.push_back(taken("*.cmp.v", fmt::format("phi_v takes {} of phi_k", part),
                        fmt::format(".attention.phi_v.{}", part), fmt::format(".attention.phi_k.{}", part)));
    all.push_back(taken("*.cmp.k", fmt::format("phi_k takes {} of phi_v", part),
                        fmt::format(".attention.phi_k.{}", part), fmt::format(".attention.phi_v.{}", part)));
  }
  all.push_back({"*.cmp.v", "phi_v is phi_k: the two share their weights", [](PlainModel& m, Documents&) {
                   for (const char* part : {"position", "fc1.weight", "fc2.weight"})
                     take(m, fmt::format(".attention.phi_v.{}", part), fmt::format(".attention.phi_k.{}", part));
                 }});
  for (const char* stage : {"*.cmp.k", "*.cmp.v"}) {
    all.push_back(constant(stage, "phi's activation is GELU, not SiLU", [](auto& c) { c.phi = Curve::gelu; }));
    all.push_back(constant(stage, "phi's activation is ReLU, not SiLU", [](auto& c) { c.phi = Curve::relu; }));
    all.push_back(constant(stage,
                           "phi reads a block dimension after dimension ([D, l]), not token after token ([l, D])",
                           [](auto& c) { c.phi_by_width = true; }));
    all.push_back({stage, "phi adds no positions", [](PlainModel& m, Documents&) { fill(m, ".position", 0); }});
  }
  constexpr const char* kBranches[] = {"compressed", "selected", "window"};
  constexpr std::array<std::int64_t, 3> kOrders[] = {{1, 0, 2}, {2, 1, 0}, {0, 2, 1}, {1, 2, 0}, {2, 0, 1}};
  for (const auto& order : kOrders)
    all.push_back(
        constant("*.attention.o",
                 fmt::format("the branches' gates are mixed up: compressed, selected and window are weighed by "
                             "the gates of {}, {} and {}",
                             kBranches[order[0]], kBranches[order[1]], kBranches[order[2]]),
                 [=](auto& c) { c.gate_order = order; }));
  all.push_back(constant("*.attention.o", "head i is weighed by the gates of group i mod G, not of its own group i / h",
                         [](auto& c) { c.gates_one_in_g = true; }));
}

void add_stream(std::vector<Mistake>& all) {
  all.push_back(constant("*.mlp", "the MLP's activation is GELU, not SiLU", [](auto& c) { c.mlp = Curve::gelu; }));
  all.push_back(constant("*.mlp", "the MLP's activation is ReLU, not SiLU", [](auto& c) { c.mlp = Curve::relu; }));
  all.push_back(constant("*.mlp", "the MLP reads the layer's input, not the stream after attention",
                         [](auto& c) { c.mlp_input = oracle::Input::before_attention; }));
  all.push_back(taken("*.mlp", "the MLP's norm takes the weight of attention's norm", ".norm_mlp.weight",
                      ".norm_attention.weight"));
  all.push_back(taken(kGates, "attention's norm takes the weight of the MLP's norm", ".norm_attention.weight",
                      ".norm_mlp.weight"));
  for (const auto& [scale, name] : {std::pair{0.0, "lost"}, std::pair{0.5, "halved"}, std::pair{2.0, "doubled"},
                                    std::pair{std::sqrt(0.5), "scaled by sqrt(1/2)"}})
    for (const char* stage : {"*.mlp", "layers.[0-9]*"})  // what attention adds shows in the MLP first
      all.push_back(constant(stage, fmt::format("what a layer adds to the stream is {}", name),
                             [scale = scale](auto& c) { c.residual_scale = scale; }));
  all.push_back(constant("*.mlp", "the residual past attention goes on from the normed stream, not from the stream",
                         [](auto& c) { c.attention_residual_is_normed = true; }));
  all.push_back(constant("layers.[0-9]*",
                         "the residual past the MLP goes on from the normed stream, not from the stream",
                         [](auto& c) { c.mlp_residual_is_normed = true; }));
  all.push_back({"embedding", "embedded tokens are multiplied by sqrt(dim)", [](PlainModel& m, Documents&) {
                   m.constants.embedding_scale = std::sqrt(static_cast<double>(m.config.dim));
                 }});
  all.push_back(
      {"embedding", "the embedding's row 0 is taken for padding and gives nothing", [](PlainModel& m, Documents&) {
         at::Tensor& table = m.parameters.at("embedding.weight");
         table = table.detach().clone();
         table[0].zero_();
       }});
  all.push_back({"logits", "the head takes the embedding's weights for its own",
                 [](PlainModel& m, Documents&) { m.parameters["head.weight"] = m.parameters.at("embedding.weight"); }});
  all.push_back(constant("logits", "the head reads the stream before the last norm, not what the norm gives",
                         [](auto& c) { c.head_reads_stream = true; }));
  all.push_back(constant("loss",
                         "the targets are taken token by token over the rows of a batch, and the logits row by row",
                         [](auto& c) { c.targets_by_column = true; }));
  for (const double smoothing : {0.01, 0.05, 0.1, 0.2})
    all.push_back(constant("loss", fmt::format("the loss smooths its labels by {:g}", smoothing),
                           [=](auto& c) { c.smoothing = smoothing; }));
  all.push_back(constant("loss", "the loss leaves out the predictions of token 0", [](auto& c) { c.unpredicted = 0; }));
  all.push_back({"*", "the documents of a packed batch are taken for one text",
                 [](PlainModel&, Documents& documents) { documents.clear(); }});
}

const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all = [] {
    std::vector<Mistake> made;
    add_norm(made);
    add_gate(made);
    add_rope(made);
    add_branches(made);
    add_stream(made);
    return made;
  }();
  return all;
}

// Whether `value` is what the mistake gives, by the bound that right values are held to.
bool explains(const at::Tensor& value, const at::Tensor& mistaken, const at::Tensor& error_of_naive,
              const oracle::RmsLaw& law, std::int64_t row_dims) {
  if (!mistaken.defined() || mistaken.sizes() != value.sizes()) return false;
  const at::Tensor wanted = mistaken.detach().to(at::kDouble);
  return judge_rms({value, wanted, wanted + error_of_naive}, law, row_dims).good();
}

// How often a share of a gradient arrives, in words; "" where the number is no likely mistake.
std::string times(double factor) {
  constexpr double kClose = 0.02;
  const auto is = [&](double value) { return std::abs(factor - value) < kClose * std::max(1.0, std::abs(value)); };
  if (is(0)) return "is lost";
  if (is(2)) return "is counted twice";
  if (is(-1)) return "has the wrong sign";
  return std::isfinite(factor) && std::abs(factor) < 1e6 ? fmt::format("arrives {:.3g} times", factor) : "";
}

double inner_product(const at::Tensor& a, const at::Tensor& b) { return (a * b).sum().item<double>(); }

}  // namespace

std::string told(const std::string& as_if) {
  return as_if.empty() ? "" : fmt::format("; it is what it would be if {}", as_if);
}

std::string mistake_in(const PartedStage& parted, const PlainModel& model, const Documents& documents,
                       const PassBy& pass) {
  const at::NoGradGuard no_grad;
  const at::Tensor wanted = parted.exact.stage(parted.name), naive = parted.naive.stage(parted.name);
  if (!wanted.defined() || !naive.defined() || !parted.shown.defined()) return "";
  at::Tensor error = naive.detach().to(at::kDouble) - wanted.detach();
  if (parted.name == "loss")  // one number may be right by luck
    error = error.abs() +
            (parted.naive.surprise.detach().to(at::kDouble) - parted.exact.surprise.detach()).square().mean().sqrt();
  for (const Mistake& mistake : mistakes()) {
    if (::fnmatch(mistake.stage, parted.name.c_str(), 0) != 0) continue;
    PlainModel other = model;
    Documents other_documents = documents;
    mistake.make(other, other_documents);
    const at::Tensor mistaken = pass(other, other_documents).stage(parted.name);
    if (!mistaken.defined()) continue;
    const std::int64_t rows = wanted.dim() >= 3 ? 2 : 0;
    // Larger values are rounded more coarsely.
    const double larger = std::max(1.0, (mistaken.detach().to(at::kDouble).norm() / wanted.norm()).item<double>());
    if (explains(parted.shown, mistaken, larger * error, oracle::rms_law(parted.storage), rows)) return mistake.what;
  }
  return "";
}

std::string mistake_in(const PartedGradient& parted, const PlainModel& model, const Documents& documents,
                       const PassBy& pass, const at::Tensor& tokens) {
  if (!parted.shown.defined() || !parted.exact.defined() || !parted.naive.defined()) return "";
  oracle::RmsLaw law = oracle::rms_law(parted.storage);
  law.independent = parted.independent;
  const at::Tensor shown = parted.shown.detach().to(at::kDouble), error = parted.naive - parted.exact;
  const auto is = [&](const at::Tensor& mistaken) { return explains(shown, mistaken, error, law, 1); };
  const auto best = [&](const at::Tensor& share) {
    return 1 + inner_product(shown - parted.exact, share) / inner_product(share, share);
  };

  if (const double factor = best(parted.exact); is(factor * parted.exact)) {
    const std::string how = times(factor);
    if (!how.empty()) return "the whole gradient of " + parted.parameter + " " + how;
  }
  for (const std::string_view path : oracle::kPaths) {
    PlainModel cut = model;
    cut.constants.cut = path;
    const at::Tensor& leaf = cut.parameters.at(parted.parameter);
    const auto left = torch::autograd::grad({pass(cut, documents).loss}, {leaf}, {}, false, false, true)[0];
    const at::Tensor share = left.defined() ? parted.exact - left.to(at::kDouble) : parted.exact;
    if (!share.any().item<bool>()) continue;  // the path does not lead here
    const double factor = best(share);
    const std::string how = times(factor);
    if (!how.empty() && is(parted.exact + (factor - 1) * share))
      return fmt::format("the gradient that comes back {} {}", path, how);
  }
  for (const auto& [back, what] :
       {std::pair{-1.0, "RoPE turned gradients on and not back"}, std::pair{0.0, "RoPE did not turn gradients back"}}) {
    PlainModel other = model;
    other.constants.rope_back = back;
    const at::Tensor& leaf = other.parameters.at(parted.parameter);
    const auto mistaken = torch::autograd::grad({pass(other, documents).loss}, {leaf}, {}, false, false, true)[0];
    if (mistaken.defined() && is(mistaken.to(at::kDouble))) return what;
  }
  if (shown.dim() < 2) return "";
  const at::Tensor lost = shown.flatten(1).any(1).logical_not().logical_and(parted.exact.flatten(1).any(1));
  if (lost.any().item<bool>() && is(parted.exact.masked_fill(lost.unsqueeze(1), 0)))
    return fmt::format("{} rows of the gradient of {} are lost, the first is {}", lost.sum().item<std::int64_t>(),
                       parted.parameter, lost.nonzero()[0][0].item<std::int64_t>());
  if (parted.parameter == "embedding.weight") {
    const at::Tensor seen =
        at::bincount(tokens.slice(1, 0, tokens.size(1) - 1).flatten().cpu(), {}, shown.size(0)).to(shown.options());
    if (is(parted.exact / seen.clamp_min(1).unsqueeze(1)))
      return "the gradient of each embedded token is divided by how often the token occurs";
  }
  return "";
}

}  // namespace suites::parity_cases
