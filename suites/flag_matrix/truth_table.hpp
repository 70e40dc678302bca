// What the NSA_* variables must mean, written out by hand. Nothing is computed as the product computes it: rows are
// rows, and the routing rule is the text of the specification in the order of its words.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "nsa/flags.hpp"
#include "nsa/route.hpp"

namespace suites::flag_truth {

// NSA_USE_FA2, _WIN, _CMP: '-' unset, '0', '1'. The 27 settings.
struct Fa2Row {
  char use, win, cmp;
  bool all_effective, win_effective, cmp_effective;
  [[nodiscard]] nsa::Environment environment() const;
};
[[nodiscard]] const std::array<Fa2Row, 27>& fa2_table();

// One setting of the matrix: a variable, a value and what the effective flags must then say.
struct Setting {
  std::string name, value;
  std::function<bool(const nsa::EffectiveFlags&)> in_force;
  [[nodiscard]] std::string text() const { return name + "=" + value; }
};
[[nodiscard]] const std::vector<Setting>& settings();
// In the order of the arguments; two settings of one variable cannot be combined.
[[nodiscard]] nsa::Environment together(const std::vector<const Setting*>& chosen);
// Settings that contradict one another and must be refused.
[[nodiscard]] bool contradictory(const nsa::Environment& environment);

// Which way each attention must take.
struct Ways {
  std::string compressed, selected, window;
};
[[nodiscard]] Ways expected_ways(const nsa::Environment& environment, const nsa::Call& call);

}  // namespace suites::flag_truth
