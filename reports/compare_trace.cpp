#include "reports/compare_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

namespace reports {

namespace {

constexpr std::string_view kPrefix = "trace/";
constexpr std::size_t kMostDigits = 12;

using Steps = std::map<std::int64_t, const Json*>;

Steps steps_of(const Case& c) {
  Steps steps;
  if (!c.facts.is_object()) return steps;
  for (const auto& [key, value] : c.facts.items()) {
    if (!key.starts_with(kPrefix)) continue;
    const std::string number = key.substr(kPrefix.size());
    const bool good = !number.empty() && number.size() <= kMostDigits &&
                      number.find_first_not_of("0123456789") == std::string::npos && value.is_object() &&
                      std::all_of(value.begin(), value.end(), [](const Json& hash) { return hash.is_string(); });
    if (!good) throw std::invalid_argument(fmt::format("{}: fact '{}' is no trace of a step", c.id, key.substr(0, 60)));
    steps[std::stoll(number)] = &value;
  }
  return steps;
}

// The first stage that differs within a step. Counts those before.
std::optional<TracedCase::Parting> part_of(const Json& a, const Json& b, TracedCase& traced) {
  TracedCase::Parting parting;
  auto left = a.items().begin(), right = b.items().begin();
  const auto left_end = a.items().end(), right_end = b.items().end();
  for (; left != left_end && right != right_end; ++left, ++right) {
    if (left.key() != right.key() || left.value() != right.value()) break;
    parting.before = left.key();
    ++traced.hashes;
  }
  if (left == left_end && right == right_end) return std::nullopt;
  const bool both = left != left_end && right != right_end;
  if (both && left.key() == right.key()) {
    parting.stage = left.key();
    parting.what = fmt::format("{} and {}", left.value().get<std::string>(), right.value().get<std::string>());
  } else if (both) {
    parting.stage = left.key();
    parting.what = fmt::format("the other run computes {} there", right.key());
  } else {
    parting.stage = left != left_end ? left.key() : right.key();
    parting.what = fmt::format("only the {} run has it", left != left_end ? "first" : "second");
  }
  return parting;
}

TracedCase compare(const std::string& id, const Steps& a, const Steps& b) {
  TracedCase traced;
  traced.id = id;
  Steps all = a;
  all.insert(b.begin(), b.end());
  for (const auto& [step, unused] : all) {
    const auto left = a.find(step), right = b.find(step);
    if (left == a.end() || right == b.end()) {
      traced.parting = {step, "", fmt::format("only the {} run has this step", left != a.end() ? "first" : "second"),
                        ""};
      return traced;
    }
    traced.parting = part_of(*left->second, *right->second, traced);
    if (traced.parting) {
      traced.parting->step = step;
      return traced;
    }
    ++traced.steps;
  }
  return traced;
}

const Case* find(const Run& run, const std::string& id) {
  for (const Suite& suite : run.suites)
    for (const Case& c : suite.cases)
      if (c.id == id) return &c;
  return nullptr;
}

}  // namespace

std::vector<TracedCase> compare_traces(const Run& a, const Run& b) {
  std::vector<TracedCase> cases;
  for (const Suite& suite : a.suites) {
    for (const Case& c : suite.cases) {
      const Case* other = find(b, c.id);
      if (other == nullptr) continue;
      const Steps left = steps_of(c), right = steps_of(*other);
      if (!left.empty() && !right.empty()) cases.push_back(compare(c.id, left, right));
    }
  }
  return cases;
}

std::string to_text(const std::vector<TracedCase>& cases) {
  std::string text;
  for (const TracedCase& c : cases) {
    if (!c.parting) {
      text += fmt::format("trace {}: the same bits in {} steps, {} hashes\n", c.id, c.steps, c.hashes);
      continue;
    }
    const TracedCase::Parting& p = *c.parting;
    text += fmt::format("trace {}: they part at step {}{}: {}", c.id, p.step, p.stage.empty() ? "" : ", " + p.stage,
                        p.what);
    text += fmt::format(" ({} steps and {} hashes before are the same{})\n", c.steps, c.hashes,
                        p.before.empty() ? "" : "; the last is " + p.before);
  }
  return text;
}

}  // namespace reports
