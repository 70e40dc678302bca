#include "suites/selftest/mutants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "suites/selftest/baseline.hpp"

namespace suites::selftest {

namespace {

constexpr std::size_t kShortestReason = 20;

[[noreturn]] void refuse_equivalents(const std::string& name, const std::string& what, bool incompatible = false) {
  throw BaselineError(fmt::format("{}: {}", name, what), incompatible);
}

std::string word_of(const Json& json, const char* key, const std::string& name) {
  if (!json.contains(key) || !json[key].is_string()) refuse_equivalents(name, fmt::format("'{}' must be a text", key));
  return json[key].get<std::string>();
}

std::vector<Trial> of_sources(std::span<const Trial> trials) {
  std::vector<Trial> own;
  std::copy_if(trials.begin(), trials.end(), std::back_inserter(own),
               [](const Trial& trial) { return trial.any_code; });
  return own;
}

// A row for each name, in the order in which they come.
template <typename NameOf>
std::vector<Score> rows_by(std::span<const Trial> trials, NameOf name_of) {
  std::vector<std::pair<std::string, std::vector<Trial>>> groups;
  for (const Trial& trial : of_sources(trials)) {
    const std::string name = name_of(trial);
    if (name.empty()) continue;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& one) { return one.first == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
    group->second.push_back(trial);
  }
  std::vector<Score> rows;
  for (const auto& [name, own] : groups) rows.push_back(score(name, own));
  return rows;
}

}  // namespace

Equivalents parse_equivalents(const std::string& text, const std::string& name) {
  Json json;
  try {
    json = reports::parse_edited(text);
  } catch (const Json::exception&) {  // is no object
  } catch (const std::invalid_argument& twice) {
    refuse_equivalents(name, twice.what());
  }
  if (!json.is_object()) refuse_equivalents(name, "is no JSON object: damaged, or no list of equivalent mutants");
  if (const std::string schema = word_of(json, "schema", name); schema != kEquivalentSchema)
    refuse_equivalents(name, fmt::format("schema '{}' is not '{}'", schema, kEquivalentSchema));
  const std::string version = word_of(json, "schema_version", name);
  if (version.substr(0, version.find('.')) != std::string(kEquivalentVersion).substr(0, 1))
    refuse_equivalents(
        name, fmt::format("schema version {} cannot be read; this program reads {}", version, kEquivalentVersion),
        true);
  if (!json.contains("mutants") || !json["mutants"].is_object())
    refuse_equivalents(name, "'mutants' must be an object");
  Equivalents known;
  for (const auto& [mutant, reason] : json["mutants"].items()) {
    if (!reason.is_string() || reason.get<std::string>().size() < kShortestReason)
      refuse_equivalents(name, fmt::format("mutant '{}': needs a sentence that says why it changes nothing", mutant));
    known[mutant] = reason.get<std::string>();
  }
  return known;
}

void mark(Trial& trial, const Equivalents& known) {
  const auto row = known.find(trial.fault);
  if (row == known.end() || trial.outcome != Outcome::survived) return;
  trial.outcome = Outcome::equivalent;
  trial.why = row->second;
}

std::vector<std::string> wrongly_marked(std::span<const Trial> trials, const Equivalents& known) {
  std::vector<std::string> names;
  for (const Trial& trial : trials)
    if (known.contains(trial.fault) && (trial.outcome == Outcome::caught || trial.outcome == Outcome::by_crash ||
                                        trial.outcome == Outcome::other_reason))
      names.push_back(trial.fault);
  return names;
}

std::vector<std::string> marked_in_vain(std::span<const std::string> catalogue, const Equivalents& known) {
  std::vector<std::string> names;
  for (const auto& [name, reason] : known)
    if (std::find(catalogue.begin(), catalogue.end(), name) == catalogue.end()) names.push_back(name);
  return names;
}

std::vector<Score> by_first_suite(std::span<const Trial> trials) {
  return rows_by(trials, [](const Trial& trial) { return trial.first_suite; });
}

std::vector<Score> by_kind(std::span<const Trial> trials) {
  return rows_by(trials, [](const Trial& trial) {
    const std::size_t end = trial.fault.rfind('-');
    const std::size_t begin = end == std::string::npos ? end : trial.fault.rfind('-', end - 1);
    return begin == std::string::npos ? trial.fault : trial.fault.substr(begin + 1, end - begin - 1);
  });
}

Noticed noticed(std::span<const Trial> trials) {
  Noticed all;
  std::set<std::string> ran, suites, loud_suites;
  for (const Trial& trial : trials) {
    if (trial.any_code)
      for (const std::string& code : trial.found) ++all.codes[code];
    for (const std::string& id : trial.noticed) ++all.cases[id];
    ran.insert(trial.ran.begin(), trial.ran.end());
  }
  const auto suite_of = [](const std::string& id) { return id.substr(0, id.find('/')); };
  for (const auto& [id, count] : all.cases) loud_suites.insert(suite_of(id));
  for (const std::string& id : ran) {
    suites.insert(suite_of(id));
    if (!all.cases.contains(id)) all.silent_cases.push_back(id);
  }
  for (const std::string& suite : suites)
    if (!loud_suites.contains(suite)) all.silent_suites.push_back(suite);
  return all;
}

}  // namespace suites::selftest
