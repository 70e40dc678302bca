// `nsa-validate selftest`: plants every fault of the catalogue in the real program, one run each, and says which were
// found, by which code and how fast.
#pragma once

#include <optional>
#include <vector>

#include "suites/faults/planted.hpp"

namespace suites::selftest {

// nullopt: argv is another verb's. Exit codes as in README.md's table: 9 for a must-catch, or a fault that the baseline
// has as caught, that was not; 1 for a false alarm or a cause that was right first and is not.
[[nodiscard]] std::optional<int> verb(int argc, char** argv, const harness::Program& program,
                                      const std::vector<Planted>& catalogue);

}  // namespace suites::selftest
