// The flags as a covering problem, and the rows that cover it: every variable of the product's flag table with every
// value that its type allows in kind, unset included.
#pragma once

#include <string>
#include <vector>

#include "nsa/flags.hpp"
#include "suites/probes/covering.hpp"

namespace suites::flag_matrix_rows {

// The values that stand for a variable's type; "" is unset. Empty for a type that nobody gave values to.
[[nodiscard]] std::vector<std::string> values_of(const nsa::FlagSpec& flag);

// Variables of a type without values are left out. Forbidden is what must be refused (flag_truth::contradictory).
[[nodiscard]] covering::Problem problem_of(std::span<const nsa::FlagSpec> table);
[[nodiscard]] nsa::Environment environment_of(const covering::Problem& problem, const covering::Row& row);
// "NSA_USE_FA2=1 with NSA_FORCE_PARITY=(unset)"
[[nodiscard]] std::string text_of(const covering::Problem& problem, const covering::Pair& pair);

// The problem of the product's own table and its rows, made once.
struct Matrix {
  covering::Problem problem;
  std::vector<nsa::Environment> environments;
  covering::Coverage coverage;
};
[[nodiscard]] const Matrix& matrix();

}  // namespace suites::flag_matrix_rows
