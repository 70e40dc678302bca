#include "suites/flag_matrix/matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace suites::flag_matrix_rows {

namespace {

using covering::Choice;
using covering::Forbidden;
using covering::Pair;
using covering::Problem;
using covering::Row;

constexpr std::uint64_t kSeed = 20250828;  // any: the rows must be the same in every run

// Where a value stands; throws for a name or value that the problem lacks, so that a rule cannot be lost.
Choice choice(const Problem& problem, const std::string& name, const std::string& value) {
  for (std::size_t i = 0; i < problem.factors.size(); ++i) {
    const auto& [factor, values] = problem.factors[i];
    if (factor != name) continue;
    const auto found = std::find(values.begin(), values.end(), value);
    if (found != values.end()) return {static_cast<int>(i), static_cast<int>(found - values.begin())};
  }
  throw std::logic_error(fmt::format("the flag matrix has no {}={}", name, value));
}

std::vector<Forbidden> contradictions(const Problem& problem) {
  std::vector<Forbidden> all = {
      {{choice(problem, "NSA_FA2_FORCE_DENSE", "1"), choice(problem, "NSA_FA2_FORCE_VARLEN", "1")},
       "the window can take one entry point"}};
  for (const char* branch : {"cmp", "sel", "win"})
    all.push_back({{choice(problem, "NSA_FORCE_BRANCH", branch), choice(problem, "NSA_FORCE_UNIFORM_GATE", "1")},
                   "one branch alone, or a third of each"});
  for (const char* mask : {"", "0"})
    for (const char* force : {"", "0"})
      all.push_back({{choice(problem, "NSA_USE_SEL_PACK", "0"), choice(problem, "NSA_USE_SEL_MASK", mask),
                      choice(problem, "NSA_FORCE_SEL_MASK", force)},
                     "the selected branch would have no way"});
  return all;
}

}  // namespace

std::vector<std::string> values_of(const nsa::FlagSpec& flag) {
  if (flag.type == "bool") return {"", "0", "1"};
  if (flag.type == "int") return {"", "-1", "1", "1048576"};  // the default, never, always, longer than any test
  if (flag.type == "real") return {"", "1", "2"};
  if (flag.type == "branch") return {"", "none", "cmp", "sel", "win"};
  return {};
}

Problem problem_of(std::span<const nsa::FlagSpec> table) {
  Problem problem;
  for (const nsa::FlagSpec& flag : table)
    if (std::vector<std::string> values = values_of(flag); !values.empty())
      problem.factors.push_back({std::string(flag.name), std::move(values)});
  problem.forbidden = contradictions(problem);
  return problem;
}

nsa::Environment environment_of(const Problem& problem, const Row& row) {
  nsa::Environment environment;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::string& value = problem.factors[i].values[static_cast<std::size_t>(row[i])];
    if (!value.empty()) environment[problem.factors[i].name] = value;
  }
  return environment;
}

std::string text_of(const Problem& problem, const Pair& pair) {
  const auto text = [&](Choice c) {
    const auto& [name, values] = problem.factors[static_cast<std::size_t>(c.factor)];
    const std::string& value = values[static_cast<std::size_t>(c.value)];
    return fmt::format("{}={}", name, value.empty() ? "(unset)" : value);
  };
  return text(pair.a) + " with " + text(pair.b);
}

const Matrix& matrix() {
  static const Matrix made = [] {
    Matrix m;
    m.problem = problem_of(nsa::flag_table());
    const std::vector<Row> rows = covering::pairwise(m.problem, kSeed);
    for (const Row& row : rows) m.environments.push_back(environment_of(m.problem, row));
    m.coverage = covering::coverage(m.problem, rows);
    return m;
  }();
  return made;
}

}  // namespace suites::flag_matrix_rows
