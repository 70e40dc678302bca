#include "suites/machine/flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "suites/codes.hpp"

namespace suites::machine {

namespace {

const nsa::FlagSpec* flag_named(std::string_view name) {
  const auto table = nsa::flag_table();
  const auto found = std::find_if(table.begin(), table.end(), [&](const nsa::FlagSpec& f) { return f.name == name; });
  return found == table.end() ? nullptr : &*found;
}

// The variable that decides a field first: NSA_, NSA_USE_ or NSA_FORCE_ and the field's name, but for those that are
// called otherwise. Null: none. The rules between variables are nsa/flags.hpp's.
const nsa::FlagSpec* variable_of(const std::string& field) {
  static const std::map<std::string, std::string> others = {
      {"fa2_all", "NSA_USE_FA2"}, {"sel_mask", "NSA_FORCE_SEL_MASK"}, {"forced_branch", "NSA_FORCE_BRANCH"}};
  if (const auto other = others.find(field); other != others.end()) return flag_named(other->second);
  std::string name = field;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) { return std::toupper(letter); });
  for (const char* prefix : {"NSA_", "NSA_USE_", "NSA_FORCE_"})
    if (const nsa::FlagSpec* flag = flag_named(prefix + name)) return flag;
  return nullptr;
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
    const nsa::FlagSpec* flag = variable_of(field);
    rows.push_back({field, value, nsa::origin_of(flags, field).text, flag ? std::string(flag->name) : "",
                    flag ? std::string(flag->meaning) : ""});
  }
  return rows;
}

}  // namespace suites::machine
