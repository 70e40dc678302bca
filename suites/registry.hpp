// The suites, in the order in which a run takes them. Each is a folder named in suites/CMakeLists.txt, which writes the
// list of names (suites.def); its suite.cpp defines the function of that name: purpose, cases and settings.
#pragma once

#include "harness/suite.hpp"
#include "suites/subject.hpp"

namespace suites {

#define SUITE(name) [[nodiscard]] harness::Suite name(const Subject& subject);
#include "suites/suites.def"
#undef SUITE

[[nodiscard]] std::vector<harness::Suite> all_suites(const Subject& subject);

}  // namespace suites
