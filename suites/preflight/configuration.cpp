// Configuration drift: what the worker loads against what the supervisor planned, and against what somebody expects.
#include <fmt/format.h>

#include <map>
#include <set>
#include <stdexcept>

#include "suites/codes.hpp"
#include "suites/preflight/checks.hpp"

namespace suites::preflight_checks {

namespace {

struct Difference {
  std::string key, expected, actual, where;
};

std::vector<Difference> against_plan(const nsa::Config& config, const Json& planned) {
  const std::map<std::string, std::string> actual = nsa::flatten(config);
  std::set<std::string> keys;
  for (const auto& [key, value] : actual) keys.insert(key);
  for (const auto& [key, value] : planned.items()) keys.insert(key);
  std::vector<Difference> found;
  for (const std::string& key : keys) {
    const auto here = actual.find(key);
    const std::string a = here == actual.end() ? "(absent)" : here->second;
    const std::string e = planned.contains(key) ? planned[key].get<std::string>() : "(absent)";
    if (a != e) found.push_back({key, e, a, "the plan of this run"});
  }
  return found;
}

// One finding for all keys of one comparison.
void tell(Context& context, const std::string& what, const std::vector<Difference>& differences) {
  Json rows = Json::array();
  std::string text;
  for (const Difference& d : differences) {
    rows.push_back({{"key", d.key}, {"expected", d.expected}, {"actual", d.actual}, {"where", d.where}});
    text += fmt::format("{}{} is {}, expected {}", text.empty() ? "" : "; ", d.key, d.actual, d.expected);
  }
  context.expect("configuration." + what, differences.empty(),
                 fmt::format("{} key(s) differ from {}: {}", differences.size(), what, text), codes::kConfigDrift,
                 {{"against", what}, {"differences", rows}});
}

}  // namespace

void configuration(const Subject& subject, Context& context) {
  const nsa::Config config = subject.config_as_it_is(context);
  context.fact("configuration", Json(nsa::flatten(config)));
  context.fact("configuration.source", config.source);

  const Json planned = subject.planned(context);
  if (!planned.contains("config") || !planned["config"].contains("resolved")) {
    throw std::runtime_error("the supervisor journaled no configuration: provenance lacks config.resolved");
  }
  tell(context, "plan", against_plan(config, planned["config"]["resolved"]));

  const std::string expected_file = context.settings().text("preflight.expect");
  if (expected_file.empty()) return;
  std::vector<Difference> differences;
  for (const nsa::Drift& d : nsa::drift(config, expected_file)) {
    differences.push_back({d.key, d.expected, d.actual, d.where});
  }
  tell(context, expected_file, differences);
}

}  // namespace suites::preflight_checks
