#include <fmt/format.h>

#include "suites/codes.hpp"
#include "suites/flag_matrix/checks.hpp"

namespace suites::flag_checks {

namespace {

using flag_truth::Fa2Row;
using flag_truth::Setting;

Json to_json(const nsa::Environment& environment) {
  Json json = Json::object();
  for (const auto& [name, value] : environment) json[name] = value;
  return json;
}

std::string text(const nsa::Environment& environment) {
  std::string all;
  for (const auto& [name, value] : environment) all += fmt::format("{}{}={}", all.empty() ? "" : " ", name, value);
  return all.empty() ? "nothing set" : all;
}

// A setting that must be refused, and what the message must say.
struct Illegal {
  nsa::Environment environment;
  std::vector<std::string> words;
};

std::vector<Illegal> illegal() {
  return {
      {{{"NSA_USE_FA2", "2"}}, {"NSA_USE_FA2", "2", "0/1"}},
      {{{"NSA_USE_FA2_WIN", "maybe"}}, {"NSA_USE_FA2_WIN", "maybe"}},
      {{{"NSA_FORCE_PARITY", ""}}, {"NSA_FORCE_PARITY"}},
      {{{"NSA_FA2_MIN_LEN_WIN", "ten"}}, {"NSA_FA2_MIN_LEN_WIN", "ten", "integer"}},
      {{{"NSA_FA2_MIN_LEN_CMP", "16.5"}}, {"NSA_FA2_MIN_LEN_CMP", "16.5"}},
      {{{"NSA_ROPE_SCALE", "0"}}, {"NSA_ROPE_SCALE", "0", "number"}},
      {{{"NSA_ROPE_SCALE", "nan"}}, {"NSA_ROPE_SCALE", "nan"}},
      {{{"NSA_ROPE_SCALE", "1.5x"}}, {"NSA_ROPE_SCALE", "1.5x"}},
      {{{"NSA_FORCE_BRANCH", "window"}}, {"NSA_FORCE_BRANCH", "window", "win"}},
      {{{"NSA_FA2_FORCE_DENSE", "1"}, {"NSA_FA2_FORCE_VARLEN", "1"}}, {"NSA_FA2_FORCE_DENSE", "NSA_FA2_FORCE_VARLEN"}},
      {{{"NSA_FORCE_BRANCH", "sel"}, {"NSA_FORCE_UNIFORM_GATE", "1"}}, {"NSA_FORCE_BRANCH", "NSA_FORCE_UNIFORM_GATE"}},
      {{{"NSA_USE_SEL_PACK", "0"}}, {"NSA_USE_SEL_PACK", "NSA_USE_SEL_MASK"}},
      // Both problems in one message.
      {{{"NSA_USE_FA2", "x"}, {"NSA_ROPE_SCALE", "-3"}}, {"NSA_USE_FA2", "NSA_ROPE_SCALE"}},
  };
}

// Names that are not in the table -> the known one that must be named; "" for those of the past.
const std::map<std::string, std::string>& strangers() {
  static const std::map<std::string, std::string> all = {{"NSA_USE_FA", "NSA_USE_FA2"},
                                                         {"NSA_USE_FA2_WINDOW", "NSA_USE_FA2_WIN"},
                                                         {"NSA_FORCE_SEL_MASKS", "NSA_FORCE_SEL_MASK"},
                                                         {"NSA_STRICT_ASSERT", "NSA_STRICT_ASSERTS"},
                                                         {"NSA_SEL_TRITON_MIN_L", ""},
                                                         {"NSA_FWE_DOC_BATCH", ""},
                                                         {"NSA_SEL_RANGES_V2_MIN_S", ""}};
  return all;
}

void check_refused(Context& context, const Illegal& setting) {
  const Json evidence = {{"setting", to_json(setting.environment)}, {"message_must_name", setting.words}};
  std::string message;
  try {
    (void)nsa::resolve(setting.environment);
    context.expect("refused: " + text(setting.environment), false, text(setting.environment) + " was accepted",
                   codes::kIllegalFlagAccepted, evidence);
    return;
  } catch (const nsa::FlagInvalid& refusal) {
    message = refusal.what();
  }
  std::string lacking;
  for (const std::string& word : setting.words) {
    if (message.find(word) == std::string::npos) lacking += (lacking.empty() ? "" : ", ") + word;
  }
  context.expect("refused: " + text(setting.environment), lacking.empty(),
                 fmt::format("the refusal of {} does not name {}: {}", text(setting.environment), lacking, message),
                 codes::kIllegalFlagAccepted, evidence);
}

}  // namespace

void fa2_truth_table(Context& context) {
  Json wrong = Json::array();
  std::string first;
  for (const Fa2Row& row : flag_truth::fa2_table()) {
    const nsa::EffectiveFlags got = nsa::resolve(row.environment());
    if (got.fa2_all == row.all_effective && got.fa2_win == row.win_effective && got.fa2_cmp == row.cmp_effective)
      continue;
    const std::string line =
        fmt::format("{}: all, win, cmp are {} {} {}, must be {} {} {}", text(row.environment()), got.fa2_all,
                    got.fa2_win, got.fa2_cmp, row.all_effective, row.win_effective, row.cmp_effective);
    if (first.empty()) first = line;
    wrong.push_back(line);
  }
  context.metric("settings", static_cast<double>(flag_truth::fa2_table().size()), "1");
  context.expect("fa2.truth_table", wrong.empty(),
                 fmt::format("{} of 27 settings have other effective flags; {}", wrong.size(), first),
                 codes::kEffectiveFlags, {{"wrong", wrong}});
}

void settings_in_force(Context& context) {
  for (const Setting& setting : flag_truth::settings()) {
    nsa::Environment environment = flag_truth::together({&setting});
    if (flag_truth::contradictory(environment)) environment["NSA_USE_SEL_MASK"] = "1";  // its legal company
    context.expect("in_force: " + setting.text(), setting.in_force(nsa::resolve(environment)),
                   setting.text() + " is not in force in the effective flags", codes::kEffectiveFlags,
                   {{"setting", to_json(environment)}, {"named", setting.text()}});
  }
  const std::vector<std::pair<std::string, bool>> spellings = {{"1", true},   {"true", true}, {"yes", true},
                                                               {"on", true},  {"0", false},   {"false", false},
                                                               {"no", false}, {"off", false}};
  for (const auto& [word, meaning] : spellings) {
    const nsa::EffectiveFlags got = nsa::resolve({{"NSA_USE_FA2", word}, {"NSA_FORCE_PARITY", word}});
    context.expect("spelling: " + word, got.fa2_all == meaning && got.force_parity == meaning,
                   fmt::format("the boolean `{}` is not read as {}", word, meaning), codes::kEffectiveFlags,
                   {{"word", word}});
  }
}

void illegal_settings(Context& context) {
  for (const Illegal& setting : illegal()) check_refused(context, setting);
  for (const auto& [name, nearest] : strangers()) {
    const std::vector<nsa::UnknownFlag> unknown = nsa::unknown_flags({{name, "1"}});
    const bool told = unknown.size() == 1 && unknown[0].name == name &&
                      (nearest.empty() ? unknown[0].remark.find("retired") != std::string::npos
                                       : unknown[0].nearest == nearest && unknown[0].remark.empty());
    context.expect("unknown: " + name, told,
                   fmt::format("{} must be reported {}; it was reported {}", name,
                               nearest.empty() ? "as retired" : "with the nearest name " + nearest,
                               unknown.empty() ? "not at all"
                                               : fmt::format("with nearest `{}`, remark `{}`", unknown[0].nearest,
                                                             unknown[0].remark)),
                   codes::kIllegalFlagAccepted, {{"name", name}, {"nearest", nearest}});
  }
}

}  // namespace suites::flag_checks
