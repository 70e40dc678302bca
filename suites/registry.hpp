// The suites: each is a folder whose suite.cpp defines the function of its name. CMake finds them and writes the list
// of the names (suites.def). For what puts them together, and for a test that names one; a suite does not include this.
#pragma once

#include <vector>

#include "harness/suite.hpp"
#include "suites/subject.hpp"

namespace suites {

#define SUITE(name) [[nodiscard]] harness::Suite name(const Subject& subject);
#include "suites/suites.def"
#undef SUITE

// In the order in which a run takes them.
[[nodiscard]] std::vector<harness::Suite> all_suites(const Subject& subject);

}  // namespace suites
