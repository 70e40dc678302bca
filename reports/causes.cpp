#include "reports/causes.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <regex>
#include <set>

#include "reports/view.hpp"

namespace reports {

namespace {

constexpr int kOfACodeAlone = 10;

bool matches(std::string_view glob, const std::string& text) {
  return fnmatch(std::string(glob).c_str(), text.c_str(), 0) == 0;
}

// A finding where it stands. `place` is its order in the run.
struct Placed {
  Finding* finding;
  const Case* where;  // nullptr: of the whole run
  std::size_t place;
  [[nodiscard]] std::string id() const { return where ? where->id : ""; }
};

bool tells_non_finite(const Json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return text == "NaN" || text == "Infinity" || text == "-Infinity";
  }
  return value.is_structured() && std::any_of(value.begin(), value.end(), tells_non_finite);
}

bool tells_non_finite(const Finding& f) {
  // What surrounds the run has no numbers of the model's: "nan" is the name of a folder or of an earlier run's anomaly.
  if (f.category == "environment") return false;
  static const std::regex words("\\b(nan|inf|infinity)\\b", std::regex::icase);
  return tells_non_finite(f.evidence) || std::regex_search(f.message, words);
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : dump(value); }

bool matches(const Clue& clue, const Placed& at) {
  const Finding& f = *at.finding;
  if (!clue.codes.empty() && std::find(clue.codes.begin(), clue.codes.end(), f.code) == clue.codes.end()) return false;
  if (!matches(clue.cases, at.id())) return false;
  for (const auto& [key, glob] : clue.evidence) {
    if (!f.evidence.is_object() || !f.evidence.contains(key)) return false;
    const std::string value = text_of(f.evidence.at(std::string(key)));
    if (glob.starts_with('!') ? matches(glob.substr(1), value) : !matches(glob, value)) return false;
  }
  return clue.values == Clue::Values::any || tells_non_finite(f) == (clue.values == Clue::Values::non_finite);
}

bool matches_any(const std::vector<Clue>& clues, const Placed& at) {
  return std::any_of(clues.begin(), clues.end(), [&](const Clue& clue) { return matches(clue, at); });
}

// How many cases of a glob passed; nothing when one of them failed or none ran.
std::size_t passed(const Run& run, std::string_view glob) {
  std::size_t count = 0;
  for (const Suite& suite : run.suites)
    for (const Case& c : suite.cases) {
      if (!matches(glob, c.id) || !executed(outcome(c))) continue;
      if (tally(outcome(c)) != Tally::passed) return 0;
      ++count;
    }
  return count;
}

// The keys in braces.
std::vector<std::string> keys_of(std::string_view text) {
  std::vector<std::string> keys;
  for (std::size_t from = text.find('{'); from != std::string_view::npos; from = text.find('{', from + 1))
    keys.emplace_back(text.substr(from + 1, text.find('}', from) - from - 1));
  return keys;
}

// A list as people write it: "a, b and 3 more".
std::string listed(const Json& value) {
  constexpr std::size_t kShown = 3;
  if (!value.is_array()) return text_of(value);
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, value.size()); ++i) text += (i == 0 ? "" : ", ") + text_of(value[i]);
  return value.size() <= kShown ? text : fmt::format("{} and {} more", text, value.size() - kShown);
}

std::string filled(std::string_view what, const Finding& leading) {
  std::string text(what);
  for (const std::string& key : keys_of(what))
    text.replace(text.find("{" + key + "}"), key.size() + 2, listed(leading.evidence.at(key)));
  return text;
}

// A rule, or a code alone, that speaks.
struct Candidate {
  const CauseRule* rule;  // nullptr: a code alone
  int weight;
  std::vector<Placed> shown_by;  // by the exactness of their places, then in the order of the run
  std::vector<std::pair<std::string_view, std::size_t>> clean;
};

void lead_by_place(std::vector<Placed>& found) {
  std::stable_sort(found.begin(), found.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.finding->severity, view::located(*a.finding)) >
           std::pair(b.finding->severity, view::located(*b.finding));
  });
}

std::optional<Candidate> candidate(const Run& run, const CauseRule& rule, const std::vector<Placed>& all) {
  Candidate speaks{&rule, rule.weight, {}, {}};
  for (const Placed& at : all) {
    if (matches_any(rule.excluded_by, at)) return std::nullopt;
    if (matches(rule.clue, at)) speaks.shown_by.push_back(at);
  }
  if (speaks.shown_by.empty()) return std::nullopt;
  lead_by_place(speaks.shown_by);
  for (const Clue& clue : rule.with) {
    const auto before = speaks.shown_by.size();
    std::copy_if(all.begin(), all.end(), std::back_inserter(speaks.shown_by),
                 [&](const Placed& at) { return matches(clue, at) && !matches(rule.clue, at); });
    if (speaks.shown_by.size() == before) return std::nullopt;
  }
  for (const std::string_view glob : rule.clean) {
    speaks.clean.emplace_back(glob, passed(run, glob));
    if (speaks.clean.back().second == 0) return std::nullopt;
  }
  return speaks;
}

// Rules that speak and codes, the heaviest first; of equals the one that stands first in the table, or in the run.
std::vector<Candidate> candidates(const Run& run, std::span<const CauseRule> rules, const std::vector<Placed>& all) {
  std::vector<Candidate> found;
  for (const CauseRule& rule : rules)
    if (auto one = candidate(run, rule, all)) found.push_back(std::move(*one));
  std::vector<std::string_view> codes;
  for (const Placed& at : all)
    if (std::find(codes.begin(), codes.end(), at.finding->code) == codes.end()) codes.emplace_back(at.finding->code);
  for (const std::string_view code : codes) {
    Candidate alone{nullptr, kOfACodeAlone, {}, {}};
    std::copy_if(all.begin(), all.end(), std::back_inserter(alone.shown_by),
                 [&](const Placed& at) { return at.finding->code == code; });
    lead_by_place(alone.shown_by);
    found.push_back(std::move(alone));
  }
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    // Of codes alone the gravest leads.
    const auto rank = [](const Candidate& c) {
      return std::pair(c.weight, c.rule ? Severity::info : c.shown_by.front().finding->severity);
    };
    return rank(a) > rank(b);
  });
  return found;
}

std::string said(const Placed& at) {
  return at.where ? fmt::format("{}: {}", at.where->id, at.finding->message) : at.finding->message;
}

LikelyCause told(const Candidate& speaks, const std::vector<Placed>& own) {
  constexpr std::size_t kMessages = 2;
  const Finding& leading = *own.front().finding;
  LikelyCause cause;
  cause.id = speaks.rule ? std::string(speaks.rule->id) : leading.code;
  cause.weight = speaks.weight;
  cause.what = speaks.rule && !speaks.rule->what.empty() ? filled(speaks.rule->what, leading)
                                                         : fmt::format("{} ({})", leading.title, leading.cause);
  // One message a suite says more than many of one; where another code must stand beside it, that one is told too.
  const bool together = speaks.rule && !speaks.rule->with.empty();
  std::set<std::string> from;
  for (const Placed& at : own) {
    const std::string suite = at.where ? at.where->suite : "";
    if (cause.because.size() < kMessages && from.insert(suite + (together ? at.finding->code : "")).second)
      cause.because.push_back(said(at));
  }
  for (const auto& [glob, count] : speaks.clean)
    cause.because.push_back(fmt::format("{} of {} passed", view::plural(count, "case"), glob));
  cause.next = speaks.rule && !speaks.rule->next.empty() ? std::string(speaks.rule->next) : leading.next;
  cause.confirm = leading.repro;
  cause.severity = leading.severity;
  for (const Placed& at : own)
    if (std::find(cause.codes.begin(), cause.codes.end(), at.finding->code) == cause.codes.end())
      cause.codes.push_back(at.finding->code);
  return cause;
}

void count(std::vector<LikelyCause::Consequence>& consequences, const Finding& f) {
  const auto known =
      std::find_if(consequences.begin(), consequences.end(), [&](const auto& c) { return c.code == f.code; });
  if (known == consequences.end())
    consequences.push_back({f.code, f.title, 1});
  else
    ++known->findings;
}

}  // namespace

void find_causes(Run& run, std::span<const CauseRule> rules) {
  run.causes.clear();
  std::vector<Placed> all;
  const auto add = [&](Finding& f, const Case* where) {
    f.follows_from.clear();
    if (failing(f.severity)) all.push_back({&f, where, all.size()});
  };
  for (Finding& f : run.findings) add(f, nullptr);
  for (Suite& suite : run.suites)
    for (Case& c : suite.cases)
      for (Finding& f : c.findings) add(f, &c);

  std::set<std::size_t> taken;  // places of the findings that have a cause
  for (const Candidate& speaks : candidates(run, rules, all)) {
    std::vector<Placed> own;
    std::copy_if(speaks.shown_by.begin(), speaks.shown_by.end(), std::back_inserter(own),
                 [&](const Placed& at) { return !taken.contains(at.place); });
    // The sentence is about a finding of the clue itself.
    if (own.empty() || (speaks.rule && !matches(speaks.rule->clue, own.front()))) continue;
    for (const Placed& at : own) taken.insert(at.place);
    LikelyCause cause = told(speaks, own);
    for (const Placed& at : all) {
      if (speaks.rule == nullptr || taken.contains(at.place) || !matches_any(speaks.rule->explains, at)) continue;
      taken.insert(at.place);
      at.finding->follows_from = cause.id;
      count(cause.consequences, *at.finding);
    }
    run.causes.push_back(std::move(cause));
  }
}

std::vector<std::string> flaws(std::span<const CauseRule> rules, std::span<const std::string_view> known) {
  std::vector<std::string> found;
  std::set<std::string_view> ids;
  const auto look_at = [&](const CauseRule& rule, const Clue& clue) {
    for (const std::string_view code : clue.codes)
      if (std::find(known.begin(), known.end(), code) == known.end())
        found.push_back(fmt::format("{}: unknown code {}", rule.id, code));
  };
  for (const CauseRule& rule : rules) {
    if (!ids.insert(rule.id).second) found.push_back(fmt::format("{}: stands twice", rule.id));
    if (rule.clue.codes.empty()) found.push_back(fmt::format("{}: its clue names no code", rule.id));
    if (rule.weight <= kOfACodeAlone)
      found.push_back(fmt::format("{}: weighs no more than a code alone ({})", rule.id, kOfACodeAlone));
    for (const std::string& key : keys_of(rule.what))
      if (std::none_of(rule.clue.evidence.begin(), rule.clue.evidence.end(),
                       [&](const auto& e) { return e.first == key; }))
        found.push_back(fmt::format("{}: says {{{}}}, which its clue does not ask for", rule.id, key));
    look_at(rule, rule.clue);
    for (const Clue& clue : rule.with) look_at(rule, clue);
    for (const Clue& clue : rule.excluded_by) look_at(rule, clue);
    for (const Clue& clue : rule.explains) look_at(rule, clue);
  }
  return found;
}

}  // namespace reports
