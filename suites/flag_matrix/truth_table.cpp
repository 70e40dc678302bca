#include "suites/flag_matrix/truth_table.hpp"

#include <cmath>
#include <cstdlib>

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

bool on(const nsa::Environment& e, const std::string& name) {
  const auto found = e.find(name);
  return found != e.end() && found->second == "1";
}
bool off(const nsa::Environment& e, const std::string& name) {
  const auto found = e.find(name);
  return found != e.end() && found->second == "0";
}

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

}  // namespace

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
  if (e.contains("NSA_FORCE_BRANCH") && on(e, "NSA_FORCE_UNIFORM_GATE")) return true;
  return off(e, "NSA_USE_SEL_PACK") && !on(e, "NSA_USE_SEL_MASK") && !on(e, "NSA_FORCE_SEL_MASK");
}

Ways expected_ways(const nsa::Environment& e, const nsa::Call& call) {
  if (on(e, "NSA_FORCE_PARITY")) return {"reference", "reference", "reference"};
  const Fa2Row& fa2 = fa2_row(e);
  Ways ways = {"sdpa", "", "sdpa"};
  // What the GPU and the dtype allow is the capability table's to say; preflight proves it by calls.
  if (fa2.cmp_effective && long_enough(e, "NSA_FA2_MIN_LEN_CMP", call.S) &&
      nsa::flash_refusal(call, nsa::Op::attend_compressed).empty()) {
    ways.compressed = "flash";
  }
  if (fa2.win_effective && long_enough(e, "NSA_FA2_MIN_LEN_WIN", call.S) &&
      nsa::flash_refusal(call, nsa::Op::attend_window).empty()) {
    ways.window = on(e, "NSA_FA2_FORCE_VARLEN") ? "flash_varlen" : "flash_dense";
  }
  const bool masked = on(e, "NSA_FORCE_SEL_MASK") || (off(e, "NSA_USE_SEL_PACK") && on(e, "NSA_USE_SEL_MASK"));
  const bool safe = call.training || on(e, "NSA_TRAIN_SAFE_PACK");
  ways.selected = masked ? "masked" : safe ? "packed_safe" : "packed";
  return ways;
}

}  // namespace suites::flag_truth
