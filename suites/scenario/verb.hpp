// `nsa-validate scenario NAME`: plants a day of a seed report in the real program, attempt by attempt, and says fact by
// fact whether it reaches what the report had to find out by hand.
#pragma once

#include <optional>
#include <vector>

#include "suites/faults/planted.hpp"
#include "suites/scenario/scenario.hpp"

namespace suites::scenario {

// nullopt: argv is another verb's. Exit codes: README.md. `folder`: where the scenarios lie.
[[nodiscard]] std::optional<int> verb(int argc, char** argv, const harness::Program& program,
                                      const std::vector<Planted>& catalogue);

// What a scenario may name in this program.
[[nodiscard]] Known known_to(const harness::Program& program, const std::vector<Planted>& catalogue);

}  // namespace suites::scenario
