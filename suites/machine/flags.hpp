// The NSA_* variables of this process: those that mean nothing, and what the others mean together.
#pragma once

#include <string>
#include <vector>

#include "nsa/flags.hpp"
#include "suites/machine/inspection.hpp"

namespace suites::machine {

// Misspelt and retired names, one judgement each.
[[nodiscard]] Inspection judge_flags(const nsa::Environment& environment);

// One row a field of the effective flags: field, value, origin, variable, what the variable means.
struct FlagRow {
  std::string field, value, origin, variable, meaning;
};
[[nodiscard]] std::vector<FlagRow> flag_rows(const nsa::EffectiveFlags& flags);

}  // namespace suites::machine
