// The NSA_* variables of this process: those that mean nothing, and what the others mean together.
#pragma once

#include <string>
#include <vector>

#include "nsa/flags.hpp"
#include "suites/machine/inspection.hpp"

namespace suites::machine {

// "NSA_USE_FA is set and means nothing; did you mean NSA_USE_FA2?"
[[nodiscard]] std::string describe(const nsa::UnknownFlag& flag);
// Misspelt and retired names and flags for debugging, one judgement each.
[[nodiscard]] Inspection judge_flags(const nsa::Environment& environment);

// One row a field of the effective flags: field, value, origin, variable, what the variable means.
struct FlagRow {
  std::string field, value, origin, variable, meaning;
};
[[nodiscard]] std::vector<FlagRow> flag_rows(const nsa::EffectiveFlags& flags);

}  // namespace suites::machine
