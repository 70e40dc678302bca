#include "suites/flag_matrix/truth_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "nsa/cuda/features.hpp"

namespace suites::flag_truth {

namespace {

// use  win  cmp   all  win  cmp
constexpr std::array<Fa2Row, 27> kFa2 = {
    Fa2Row{'-', '-', '-', false, false, false}, Fa2Row{'-', '-', '0', false, false, false},
    Fa2Row{'-', '-', '1', false, false, true},  Fa2Row{'-', '0', '-', false, false, false},
    Fa2Row{'-', '0', '0', false, false, false}, Fa2Row{'-', '0', '1', false, false, true},
    Fa2Row{'-', '1', '-', false, true, false},  Fa2Row{'-', '1', '0', false, true, false},
    Fa2Row{'-', '1', '1', false, true, true},   Fa2Row{'0', '-', '-', false, false, false},
    Fa2Row{'0', '-', '0', false, false, false}, Fa2Row{'0', '-', '1', false, false, false},
    Fa2Row{'0', '0', '-', false, false, false}, Fa2Row{'0', '0', '0', false, false, false},
    Fa2Row{'0', '0', '1', false, false, false}, Fa2Row{'0', '1', '-', false, false, false},
    Fa2Row{'0', '1', '0', false, false, false}, Fa2Row{'0', '1', '1', false, false, false},
    Fa2Row{'1', '-', '-', true, true, true},    Fa2Row{'1', '-', '0', true, true, false},
    Fa2Row{'1', '-', '1', true, true, true},    Fa2Row{'1', '0', '-', true, false, true},
    Fa2Row{'1', '0', '0', true, false, false},  Fa2Row{'1', '0', '1', true, false, true},
    Fa2Row{'1', '1', '-', true, true, true},    Fa2Row{'1', '1', '0', true, true, false},
    Fa2Row{'1', '1', '1', true, true, true},
};

const Fa2Row& fa2_row(const nsa::Environment& e) {
  const auto symbol = [&](const std::string& name) { return on(e, name) ? '1' : off(e, name) ? '0' : '-'; };
  for (const Fa2Row& row : kFa2) {
    if (row.use == symbol("NSA_USE_FA2") && row.win == symbol("NSA_USE_FA2_WIN") &&
        row.cmp == symbol("NSA_USE_FA2_CMP")) {
      return row;
    }
  }
  return kFa2.front();  // not reached: the table is complete
}

// "at least this many tokens"; a limit of 0 or less means never.
bool long_enough(const nsa::Environment& e, const std::string& name, std::int64_t S) {
  const auto found = e.find(name);
  const std::int64_t limit = found == e.end() ? 16 : std::atoll(found->second.c_str());
  return limit > 0 && S >= limit;
}

// A branch that may take FlashAttention-2.
struct Branch {
  bool asked;
  std::string min_length;  // the variable
};
Branch branch_of(const nsa::Environment& e, nsa::Op op) {
  const Fa2Row& fa2 = fa2_row(e);
  return op == nsa::Op::attend_window ? Branch{fa2.win_effective, "NSA_FA2_MIN_LEN_WIN"}
                                      : Branch{fa2.cmp_effective, "NSA_FA2_MIN_LEN_CMP"};
}

// A packed batch has one entry point, and this setting closes it.
bool entry_is_closed(const nsa::Environment& e, const nsa::Call& call, nsa::Op op) {
  return op == nsa::Op::attend_window && call.packed && on(e, "NSA_FA2_FORCE_DENSE");
}

bool takes_flash(const nsa::Environment& e, const nsa::Call& call, nsa::Op op) {
  const Branch branch = branch_of(e, op);
  // What the GPU and the dtype allow is the capability table's to say; preflight proves it by calls.
  return branch.asked && long_enough(e, branch.min_length, call.S) && !entry_is_closed(e, call, op) &&
         nsa::flash_refusal(call, op).empty();
}

// Gathering holds K and V of n blocks of l' tokens for every row: of all of them with gradients, else of 4096 at a
// time. Beyond 2 GiB the mask is taken.
bool gathering_is_too_large(const nsa::Call& call) {
  const double element = call.precision == nsa::Precision::bf16 ? 2 : call.precision == nsa::Precision::fp32 ? 4 : 8;
  const double all = static_cast<double>(call.B) * static_cast<double>(call.S) * static_cast<double>(call.G);
  const double rows = call.training ? all : std::min(all, 4096.0);
  const double tokens = static_cast<double>(call.geometry.n_sel * call.geometry.l_sel);
  return rows * tokens * static_cast<double>(call.Dk + call.Dv) * element > 2.0 * (1 << 30);
}

}  // namespace

bool on(const nsa::Environment& e, const std::string& name) {
  const auto found = e.find(name);
  return found != e.end() && found->second == "1";
}

bool off(const nsa::Environment& e, const std::string& name) {
  const auto found = e.find(name);
  return found != e.end() && found->second == "0";
}

std::string forced_branch(const nsa::Environment& e) {
  const auto found = e.find("NSA_FORCE_BRANCH");
  return found == e.end() || found->second == "none" ? "" : found->second;
}

nsa::Environment Fa2Row::environment() const {
  nsa::Environment e;
  if (use != '-') e["NSA_USE_FA2"] = use;
  if (win != '-') e["NSA_USE_FA2_WIN"] = win;
  if (cmp != '-') e["NSA_USE_FA2_CMP"] = cmp;
  return e;
}

const std::array<Fa2Row, 27>& fa2_table() { return kFa2; }

const std::vector<Setting>& settings() {
  using F = nsa::EffectiveFlags;
  using nsa::ForcedBranch;
  static const std::vector<Setting> all = {
      {"NSA_USE_FA2", "1", [](const F& f) { return f.fa2_all; }},
      {"NSA_USE_FA2_WIN", "1", [](const F& f) { return f.fa2_win; }},
      {"NSA_USE_FA2_CMP", "1", [](const F& f) { return f.fa2_cmp; }},
      {"NSA_FA2_MIN_LEN_WIN", "-1", [](const F& f) { return f.fa2_min_len_win <= 0; }},
      {"NSA_FA2_MIN_LEN_CMP", "-1", [](const F& f) { return f.fa2_min_len_cmp <= 0; }},
      {"NSA_FA2_FORCE_DENSE", "1", [](const F& f) { return f.fa2_force_dense; }},
      {"NSA_FA2_FORCE_VARLEN", "1", [](const F& f) { return f.fa2_force_varlen; }},
      {"NSA_USE_CUDA", "0", [](const F& f) { return !f.use_cuda; }},
      {"NSA_GRAPH_CALLS", "0", [](const F& f) { return !f.graph_calls; }},
      {"NSA_FUSED_DECODE", "0", [](const F& f) { return !f.fused_decode; }},
      {"NSA_FUSED_NORM", "0", [](const F& f) { return !f.fused_norm; }},
      {"NSA_FUSED_PROJECT", "0", [](const F& f) { return !f.fused_project; }},
      {"NSA_FUSED_MLP", "0", [](const F& f) { return !f.fused_mlp; }},
      {"NSA_FUSED_SILU", "0", [](const F& f) { return !f.fused_silu; }},
      {"NSA_FUSED_EMBEDDING", "0", [](const F& f) { return !f.fused_embedding; }},
      {"NSA_FUSED_UPDATE", "0", [](const F& f) { return !f.fused_update; }},
      {"NSA_USE_SEL_PACK", "0", [](const F& f) { return !f.sel_pack; }},
      {"NSA_USE_SEL_MASK", "1", [](const F&) { return true; }},  // in force only where packing is off
      {"NSA_FORCE_SEL_MASK", "1", [](const F& f) { return f.sel_mask; }},
      {"NSA_FORCE_PARITY", "1", [](const F& f) { return f.force_parity; }},
      {"NSA_TRAIN_SAFE_PACK", "1", [](const F& f) { return f.train_safe_pack; }},
      {"NSA_STRICT_ASSERTS", "1", [](const F& f) { return f.strict_asserts; }},
      {"NSA_FORCE_UNIFORM_GATE", "1", [](const F& f) { return f.uniform_gate; }},
      {"NSA_STOPGRAD_GATES", "1", [](const F& f) { return f.stopgrad_gates; }},
      {"NSA_FORCE_BRANCH", "cmp", [](const F& f) { return f.forced_branch == ForcedBranch::cmp; }},
      {"NSA_FORCE_BRANCH", "sel", [](const F& f) { return f.forced_branch == ForcedBranch::sel; }},
      {"NSA_FORCE_BRANCH", "win", [](const F& f) { return f.forced_branch == ForcedBranch::win; }},
      {"NSA_ROPE_SCALE", "2", [](const F& f) { return f.rope_scale == 2.0; }},
      {"NSA_NVTX", "1", [](const F& f) { return f.nvtx; }},
      {"NSA_DETECT_ANOMALY", "1", [](const F& f) { return f.detect_anomaly; }},
  };
  return all;
}

nsa::Environment together(const std::vector<const Setting*>& chosen) {
  nsa::Environment e;
  for (const Setting* setting : chosen) e[setting->name] = setting->value;
  return e;
}

bool contradictory(const nsa::Environment& e) {
  if (on(e, "NSA_FA2_FORCE_DENSE") && on(e, "NSA_FA2_FORCE_VARLEN")) return true;
  if (!forced_branch(e).empty() && on(e, "NSA_FORCE_UNIFORM_GATE")) return true;
  return off(e, "NSA_USE_SEL_PACK") && !on(e, "NSA_USE_SEL_MASK") && !on(e, "NSA_FORCE_SEL_MASK");
}

Ways expected_ways(const nsa::Environment& e, const nsa::Call& call) {
  if (on(e, "NSA_FORCE_PARITY")) return {"reference", "reference", "reference"};
  Ways ways = {"sdpa", "", "sdpa"};
  if (takes_flash(e, call, nsa::Op::attend_compressed)) ways.compressed = "flash";
  if (takes_flash(e, call, nsa::Op::attend_window))
    ways.window = call.packed || on(e, "NSA_FA2_FORCE_VARLEN") ? "flash_varlen" : "flash_dense";
  const bool masked = on(e, "NSA_FORCE_SEL_MASK") || (off(e, "NSA_USE_SEL_PACK") && on(e, "NSA_USE_SEL_MASK"));
  const bool safe = call.training || on(e, "NSA_TRAIN_SAFE_PACK");
  ways.selected = masked || gathering_is_too_large(call) ? "masked" : safe ? "packed_safe" : "packed";
  // Our own kernels take what nothing else was asked for by name.
  const auto takes_kernels = [&](nsa::Op op) { return !off(e, "NSA_USE_CUDA") && nsa::cuda_refusal(call, op).empty(); };
  if (ways.compressed == "sdpa" && takes_kernels(nsa::Op::attend_compressed)) ways.compressed = "cuda";
  if (ways.window == "sdpa" && takes_kernels(nsa::Op::attend_window)) ways.window = "cuda";
  if (!masked && takes_kernels(nsa::Op::attend_selected)) ways.selected = "cuda";
  return ways;
}

std::string expected_norm(const nsa::Environment& e, const nsa::Call& call, std::int64_t dim) {
  const bool asked = !off(e, "NSA_FUSED_NORM") && !off(e, "NSA_USE_CUDA") && !on(e, "NSA_FORCE_PARITY");
  const bool served = call.cuda && call.precision == nsa::Precision::bf16 && dim % 8 == 0 && dim <= 8192;
  return asked && served ? "cuda" : "aten";
}

bool expects_joined_mlp(const nsa::Environment& e, const nsa::Call& call) {
  const bool asked = !off(e, "NSA_FUSED_MLP") && !off(e, "NSA_USE_CUDA") && !on(e, "NSA_FORCE_PARITY");
  return asked && call.cuda && call.precision == nsa::Precision::bf16;
}

bool expects_one_product(const nsa::Environment& e, const nsa::Call& call) {
  // A forced branch has fewer projections, and a uniform gate no network.
  const bool whole = forced_branch(e).empty() && !on(e, "NSA_FORCE_UNIFORM_GATE");
  const bool asked = !off(e, "NSA_FUSED_PROJECT") && !off(e, "NSA_USE_CUDA") && !on(e, "NSA_FORCE_PARITY");
  return whole && asked && nsa::project_refusal(call).empty();
}

std::vector<std::vector<std::string>> refusal_words(const nsa::Environment& e, const nsa::Call& call, nsa::Op op) {
  const Branch branch = branch_of(e, op);
  if (!branch.asked || on(e, "NSA_FORCE_PARITY") || takes_flash(e, call, op)) return {};
  std::vector<std::vector<std::string>> any;
  if (!long_enough(e, branch.min_length, call.S)) any.push_back({branch.min_length});
  if (entry_is_closed(e, call, op)) any.push_back({"packed", "NSA_FA2_FORCE_DENSE"});
  if (!call.cuda) any.push_back({"device is cpu"});
  if (call.cuda && call.precision != nsa::Precision::bf16) any.push_back({"precision", "bf16"});
  if (call.Dk != call.Dv) any.push_back({"d_k", "d_v"});
  if (call.Dk % 8 != 0 || call.Dk > 256) any.push_back({"head width"});
  if (call.cuda && call.cuda_major < 8) any.push_back({"compute capability"});
  if (op == nsa::Op::attend_compressed && call.S < call.geometry.l) any.push_back({"no compressed block"});
  return any;
}

const std::vector<std::string>& known_variables() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const Setting& setting : settings())
      if (std::find(names.begin(), names.end(), setting.name) == names.end()) names.push_back(setting.name);
    return names;
  }();
  return all;
}

std::map<std::string, Field> expected_fields(const nsa::Environment& e) {
  const auto set = [&](const std::string& name) { return e.contains(name); };
  const auto origin = [&](const std::string& name) { return set(name) ? name + "=" + e.at(name) : "default"; };
  const auto boolean = [](bool value) { return std::string(value ? "true" : "false"); };
  const auto plain = [&](const std::string& name) { return Field{boolean(on(e, name)), origin(name)}; };
  const auto number = [&](const std::string& name, const std::string& otherwise) {
    return Field{set(name) ? e.at(name) : otherwise, origin(name)};
  };
  const Fa2Row& fa2 = fa2_row(e);
  const auto branch = [&](bool effective, const std::string& own) {
    return Field{boolean(effective), set(own) && !off(e, "NSA_USE_FA2") ? origin(own) : origin("NSA_USE_FA2")};
  };
  // By packing's leave, or by force; a mask that packing overrules is said to be idle.
  const bool forced = on(e, "NSA_FORCE_SEL_MASK"), asked = on(e, "NSA_USE_SEL_MASK");
  const bool allowed = asked && off(e, "NSA_USE_SEL_PACK");
  const std::string mask_origin = forced                      ? origin("NSA_FORCE_SEL_MASK")
                                  : allowed                   ? origin("NSA_USE_SEL_MASK")
                                  : asked                     ? "default (NSA_USE_SEL_MASK"
                                  : set("NSA_FORCE_SEL_MASK") ? origin("NSA_FORCE_SEL_MASK")
                                                              : origin("NSA_USE_SEL_MASK");
  const std::string branch_name = forced_branch(e);
  return {{"fa2_all", {boolean(fa2.all_effective), origin("NSA_USE_FA2")}},
          {"fa2_win", branch(fa2.win_effective, "NSA_USE_FA2_WIN")},
          {"fa2_cmp", branch(fa2.cmp_effective, "NSA_USE_FA2_CMP")},
          {"fa2_min_len_win", number("NSA_FA2_MIN_LEN_WIN", "16")},
          {"fa2_min_len_cmp", number("NSA_FA2_MIN_LEN_CMP", "16")},
          {"fa2_force_dense", plain("NSA_FA2_FORCE_DENSE")},
          {"fa2_force_varlen", plain("NSA_FA2_FORCE_VARLEN")},
          {"use_cuda", {boolean(!off(e, "NSA_USE_CUDA")), origin("NSA_USE_CUDA")}},
          {"graph_calls", {boolean(!off(e, "NSA_GRAPH_CALLS")), origin("NSA_GRAPH_CALLS")}},
          {"fused_decode", {boolean(!off(e, "NSA_FUSED_DECODE")), origin("NSA_FUSED_DECODE")}},
          {"fused_norm", {boolean(!off(e, "NSA_FUSED_NORM")), origin("NSA_FUSED_NORM")}},
          {"fused_project", {boolean(!off(e, "NSA_FUSED_PROJECT")), origin("NSA_FUSED_PROJECT")}},
          {"fused_mlp", {boolean(!off(e, "NSA_FUSED_MLP")), origin("NSA_FUSED_MLP")}},
          {"fused_silu", {boolean(!off(e, "NSA_FUSED_SILU")), origin("NSA_FUSED_SILU")}},
          {"fused_embedding", {boolean(!off(e, "NSA_FUSED_EMBEDDING")), origin("NSA_FUSED_EMBEDDING")}},
          {"fused_update", {boolean(!off(e, "NSA_FUSED_UPDATE")), origin("NSA_FUSED_UPDATE")}},
          {"sel_pack", {boolean(!off(e, "NSA_USE_SEL_PACK")), origin("NSA_USE_SEL_PACK")}},
          {"sel_mask", {boolean(forced || allowed), mask_origin, asked && !allowed && !forced}},
          {"force_parity", plain("NSA_FORCE_PARITY")},
          {"train_safe_pack", plain("NSA_TRAIN_SAFE_PACK")},
          {"strict_asserts", plain("NSA_STRICT_ASSERTS")},
          {"uniform_gate", plain("NSA_FORCE_UNIFORM_GATE")},
          {"stopgrad_gates", plain("NSA_STOPGRAD_GATES")},
          {"forced_branch", {branch_name.empty() ? "none" : branch_name, origin("NSA_FORCE_BRANCH")}},
          {"rope_scale", number("NSA_ROPE_SCALE", "1")},
          {"nvtx", plain("NSA_NVTX")},
          {"detect_anomaly", plain("NSA_DETECT_ANOMALY")}};
}

}  // namespace suites::flag_truth
