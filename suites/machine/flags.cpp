#include "suites/machine/flags.hpp"

#include <fmt/format.h>

#include <map>

#include "suites/codes.hpp"

namespace suites::machine {

namespace {

// The variable that decides a field first; the rules between variables are nsa/flags.hpp's.
const std::map<std::string, std::string>& variables() {
  static const std::map<std::string, std::string> all = {{"fa2_all", "NSA_USE_FA2"},
                                                         {"fa2_win", "NSA_USE_FA2_WIN"},
                                                         {"fa2_cmp", "NSA_USE_FA2_CMP"},
                                                         {"fa2_min_len_win", "NSA_FA2_MIN_LEN_WIN"},
                                                         {"fa2_min_len_cmp", "NSA_FA2_MIN_LEN_CMP"},
                                                         {"fa2_force_dense", "NSA_FA2_FORCE_DENSE"},
                                                         {"fa2_force_varlen", "NSA_FA2_FORCE_VARLEN"},
                                                         {"use_cuda", "NSA_USE_CUDA"},
                                                         {"sel_pack", "NSA_USE_SEL_PACK"},
                                                         {"sel_mask", "NSA_FORCE_SEL_MASK"},
                                                         {"force_parity", "NSA_FORCE_PARITY"},
                                                         {"train_safe_pack", "NSA_TRAIN_SAFE_PACK"},
                                                         {"strict_asserts", "NSA_STRICT_ASSERTS"},
                                                         {"uniform_gate", "NSA_FORCE_UNIFORM_GATE"},
                                                         {"stopgrad_gates", "NSA_STOPGRAD_GATES"},
                                                         {"forced_branch", "NSA_FORCE_BRANCH"},
                                                         {"rope_scale", "NSA_ROPE_SCALE"},
                                                         {"nvtx", "NSA_NVTX"},
                                                         {"detect_anomaly", "NSA_DETECT_ANOMALY"}};
  return all;
}

std::string meaning_of(const std::string& variable) {
  for (const nsa::FlagSpec& flag : nsa::flag_table())
    if (flag.name == variable) return std::string(flag.meaning);
  return "";
}

// Flags that are for looking for a fault: what trains with them is not NSA. A value that means nothing is refused
// before any run, and not told here.
void judge_debugging(const nsa::Environment& environment, Inspection& result) {
  nsa::EffectiveFlags flags;
  try {
    flags = nsa::resolve(environment);
  } catch (const nsa::FlagInvalid&) {
    return;
  }
  const auto tell = [&](const char* variable, bool in_force, const std::string& effect) {
    if (!in_force) return;
    result.judgements.push_back({fmt::format("flags.{}", variable),
                                 false,
                                 fmt::format("{}={} is set: {}", variable, environment.at(variable), effect),
                                 codes::kDebuggingFlag,
                                 {{"name", variable}, {"value", environment.at(variable)}}});
  };
  tell("NSA_FORCE_BRANCH", flags.forced_branch != nsa::ForcedBranch::none,
       "one branch of attention computes, the two others and the gates neither compute nor learn");
  tell("NSA_FORCE_UNIFORM_GATE", flags.uniform_gate, "every gate is 1/3 and none learns");
  tell("NSA_STOPGRAD_GATES", flags.stopgrad_gates, "the gates stay as they were initialised: no gradient reaches them");
}

}  // namespace

std::string describe(const nsa::UnknownFlag& flag) {
  if (!flag.remark.empty()) return fmt::format("{} is set: {}", flag.name, flag.remark);
  return fmt::format("{} is set and means nothing{}", flag.name,
                     flag.nearest.empty() ? "" : fmt::format("; did you mean {}?", flag.nearest));
}

Inspection judge_flags(const nsa::Environment& environment) {
  Inspection result;
  result.subject = "flags.set";
  result.seen = Json(environment);
  result.summary = fmt::format("flags: {} NSA_* variable(s) set", environment.size());
  for (const nsa::UnknownFlag& flag : nsa::unknown_flags(environment)) {
    const Json evidence = {{"name", flag.name}, {"value", environment.at(flag.name)}, {"nearest", flag.nearest}};
    result.judgements.push_back({"flags." + flag.name, false, describe(flag),
                                 flag.remark.empty() ? codes::kUnknownFlag : codes::kRetiredFlag, evidence});
  }
  judge_debugging(environment, result);
  return result;
}

std::vector<FlagRow> flag_rows(const nsa::EffectiveFlags& flags) {
  std::vector<FlagRow> rows;
  for (const auto& [field, value] : nsa::flatten(flags)) {
    const auto origin = flags.origin.find(field);
    const auto known = variables().find(field);
    const std::string variable = known == variables().end() ? "" : known->second;
    rows.push_back(
        {field, value, origin == flags.origin.end() ? "default" : origin->second, variable, meaning_of(variable)});
  }
  return rows;
}

}  // namespace suites::machine
