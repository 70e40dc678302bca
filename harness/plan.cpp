#include "harness/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/nearest.hpp"

namespace harness {

namespace {

std::optional<Level> parse_level(const std::string& word) {
  for (const Level level : kLevels)
    if (to_string(level) == word) return level;
  return std::nullopt;
}

std::vector<std::string> level_words() {
  std::vector<std::string> words;
  for (const Level level : kLevels) words.emplace_back(to_string(level));
  return words;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = base::nearest(word, candidates);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

struct Scope {
  Level level = Level::smoke;
  bool level_given = false;
  std::set<std::string> suites;  // empty: all
};

Scope scope_of(const Program& program, const Selection& selection) {
  std::vector<std::string> names;
  names.reserve(program.suites.size());
  for (const Suite& suite : program.suites) names.push_back(suite.name);
  Scope scope;
  std::vector<std::string> levels;
  for (const std::string& word : selection.suites) {
    if (parse_level(word)) {
      levels.push_back(word);
    } else if (word.empty() || std::find(names.begin(), names.end(), word) != names.end()) {
      scope.suites.insert(word);  // the empty name (--suite "") selects nothing
    } else {
      std::vector<std::string> words = level_words();
      words.insert(words.end(), names.begin(), names.end());
      throw UsageError(fmt::format("--suite: unknown suite or level '{}'{} (suites: {}; levels: {})", word,
                                   did_you_mean(word, words), fmt::join(names, ", "), fmt::join(level_words(), ", ")));
    }
  }
  if (levels.size() > 1 || (!levels.empty() && (!scope.suites.empty() || !selection.level.empty())))
    throw UsageError(
        fmt::format("--suite: '{}' is a level and stands alone; use --level for named suites", levels.front()));
  const std::string level = levels.empty() ? selection.level : levels.front();
  if (!level.empty()) {
    const auto known = parse_level(level);
    if (!known)
      throw UsageError(fmt::format("--level: unknown level '{}'{} (levels: {})", level,
                                   did_you_mean(level, level_words()), fmt::join(level_words(), ", ")));
    scope.level = *known;
    scope.level_given = true;
  }
  return scope;
}

std::string bringing(const Settings& settings, const Case& work) {
  for (const std::string& key : work.brought_by)
    if (settings.values().at(key).origin != "default") return key;
  return "";
}

std::vector<PlannedSuite> all_cases(const Program& program, const Settings& settings) {
  std::vector<PlannedSuite> suites;
  std::map<std::string, std::string> hashes;
  for (const Suite* suite : running_order(program.suites)) {
    PlannedSuite planned{suite, {}};
    for (Case& work : suite->cases(settings)) {
      const std::string id = case_id(suite->name, work);
      const auto [at, fresh] = hashes.emplace(case_hash(id), id);
      if (!fresh) throw std::logic_error(fmt::format("cases '{}' and '{}' have the same hash", at->second, id));
      const std::string brought_by = bringing(settings, work);
      if (!brought_by.empty()) work.level = Level::smoke;
      planned.cases.push_back({std::move(work), id, case_hash(id), brought_by});
    }
    suites.push_back(std::move(planned));
  }
  return suites;
}

bool is_pattern(const std::string& word) { return word.find_first_of("*?") != std::string::npos; }
bool names_exactly(const std::string& word, const PlannedCase& c) { return word == c.id || word == c.hash; }

// Every word must name something, else it is a typo.
void refuse_unknown(const char* option, const std::vector<std::string>& words, const std::vector<PlannedSuite>& all) {
  for (const std::string& word : words) {
    std::vector<std::string> ids;
    bool found = false;
    for (const PlannedSuite& suite : all) {
      for (const PlannedCase& c : suite.cases) {
        ids.push_back(c.id);
        found = found || names_exactly(word, c) || matches(word, c.id);
      }
    }
    if (!found)
      throw UsageError(fmt::format("{}: no case '{}'{} (`list` shows all)", option, word, did_you_mean(word, ids)));
  }
}

// Some suites and not all of them, by their names.
bool names_suites(const Selection& selection, const Scope& scope) {
  return selection.cases.empty() && !scope.suites.empty() && !scope.suites.contains("");
}

// A contradiction within one command line. A file may hold what is for other runs.
void refuse_settings_of_other_suites(const Program& program, const Settings& settings, const Scope& scope) {
  for (const Suite& suite : program.suites) {
    if (suite.guards || scope.suites.contains(suite.name)) continue;
    for (const auto& [key, value] : settings.values()) {
      if (!key.starts_with(suite.name + ".") || !value.origin.starts_with("--")) continue;
      throw UsageError(fmt::format("{}: {}: only the suite {} looks at it; name that as well: --suite {},{}",
                                   value.origin, key, suite.name, fmt::join(scope.suites, ","), suite.name));
    }
  }
}

bool selected(const Selection& selection, const Scope& scope, const Suite& suite, const PlannedCase& c) {
  const bool guard = suite.guards && !c.brought_by.empty() && names_suites(selection, scope);
  if (!scope.suites.empty() && !scope.suites.contains(suite.name) && !guard) return false;
  const bool in_level = c.work.level <= scope.level;
  const auto hit = [&](const std::string& word) { return names_exactly(word, c) || matches(word, c.id); };
  if (std::any_of(selection.excludes.begin(), selection.excludes.end(), hit)) return false;
  if (selection.cases.empty()) return in_level;
  return std::any_of(selection.cases.begin(), selection.cases.end(), [&](const std::string& word) {
    return names_exactly(word, c) ? (in_level || !scope.level_given) : (is_pattern(word) && hit(word) && in_level);
  });
}

}  // namespace

std::size_t Plan::size() const {
  std::size_t cases = 0;
  for (const PlannedSuite& suite : suites) cases += suite.cases.size();
  return cases;
}

void check_scope(const Program& program, const Selection& selection) { (void)scope_of(program, selection); }

Plan make_plan(const Program& program, const Settings& settings, const Selection& selection) {
  const Scope scope = scope_of(program, selection);
  if (names_suites(selection, scope)) refuse_settings_of_other_suites(program, settings, scope);
  const std::vector<PlannedSuite> all = all_cases(program, settings);
  refuse_unknown("--case", selection.cases, all);
  refuse_unknown("--exclude", selection.excludes, all);
  Plan plan;
  plan.level = scope.level;
  for (const PlannedSuite& suite : all) {
    PlannedSuite kept{suite.suite, {}};
    for (const PlannedCase& c : suite.cases) {
      if (selected(selection, scope, *suite.suite, c))
        kept.cases.push_back(c);
      else if (c.work.level <= scope.level)
        plan.partial = true;
    }
    if (!kept.cases.empty()) plan.suites.push_back(std::move(kept));
  }
  return plan;
}

namespace {

const Suite& find_suite(const std::vector<Suite>& suites, const std::string& name) {
  for (const Suite& suite : suites)
    if (suite.name == name) return suite;
  throw std::logic_error(fmt::format("a suite is to run after '{}', which does not exist", name));
}

void visit(const std::vector<Suite>& suites, const Suite& suite, std::map<const Suite*, bool>& done,
           std::vector<const Suite*>& order) {
  const auto [at, fresh] = done.emplace(&suite, false);
  if (!fresh && !at->second) throw std::logic_error(fmt::format("suite '{}' is to run after itself", suite.name));
  if (!fresh) return;
  if (!suite.runs_after.empty()) visit(suites, find_suite(suites, suite.runs_after), done, order);
  for (const std::string& required : suite.requires_suites) visit(suites, find_suite(suites, required), done, order);
  done[&suite] = true;
  order.push_back(&suite);
}

// Directly or behind one that does.
std::size_t count_behind(const std::vector<Suite>& suites, const Suite& first) {
  std::size_t count = 0;
  for (const Suite& suite : suites)
    if (suite.runs_after == first.name) count += 1 + count_behind(suites, suite);
  return count;
}

// Those that run after the suite of this name, each with what stands behind it (Suite::runs_after).
void line_up(const std::vector<Suite>& suites, const std::string& name, std::vector<const Suite*>& order) {
  std::vector<const Suite*> next;
  for (const Suite& suite : suites)
    if (suite.runs_after == name) next.push_back(&suite);
  if (!name.empty())  // those that run after none keep the program's order
    std::ranges::sort(next, {}, [&](const Suite* s) { return std::pair(count_behind(suites, *s), s->name); });
  for (const Suite* suite : next) {
    order.push_back(suite);
    line_up(suites, suite->name, order);
  }
}

}  // namespace

std::vector<const Suite*> running_order(const std::vector<Suite>& suites) {
  std::vector<const Suite*> lined_up, order;
  line_up(suites, "", lined_up);
  std::map<const Suite*, bool> done;  // false: on the way
  for (const Suite* suite : lined_up) visit(suites, *suite, done, order);
  for (const Suite& suite : suites) visit(suites, suite, done, order);  // in no line: a mistake, which it names
  return order;
}

std::string blocked_by(const std::vector<Suite>& suites, const std::string& suite,
                       const std::set<std::string>& isolated) {
  for (const std::string& required : find_suite(suites, suite).requires_suites) {
    if (isolated.contains(required)) return required;
    if (std::string deeper = blocked_by(suites, required, isolated); !deeper.empty()) return deeper;
  }
  return "";
}

bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace harness
