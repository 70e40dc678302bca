// The rows of the catalogue: names that folders can have, suites and codes that exist.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "harness/codes.hpp"
#include "suites/program.hpp"
#include "suites/selftest/score.hpp"

namespace suites {
namespace {

TEST(Catalogue, EveryRowIsWhole) {
  const harness::Program program = make_program();
  const harness::CodeTable codes(program.codes);
  std::set<std::string> suites, names;
  for (const harness::Suite& suite : program.suites) suites.insert(suite.name);
  for (const Planted& fault : catalogue(std::make_shared<Seams>())) {
    SCOPED_TRACE(fault.name);
    EXPECT_TRUE(names.insert(fault.name).second) << "stands twice";
    EXPECT_THAT(fault.name, testing::Not(testing::StartsWith("clean-")));
    EXPECT_EQ(fault.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string::npos);
    EXPECT_NE(fault.what, "");
    EXPECT_NE(fault.group, "");
    EXPECT_TRUE(fault.plant);
    if (fault.any_code)
      EXPECT_TRUE(fault.expected_codes.empty() && fault.exit_code == 0) << "whatever finds it";
    else
      EXPECT_NE(fault.expected_codes.empty(), fault.exit_code == 0) << "a code or an exit code, one of them";
    for (const std::string& code : fault.expected_codes) EXPECT_NE(codes.find(code), nullptr) << code;
    for (const std::string& suite : selftest::suites_of(fault.found_by)) EXPECT_TRUE(suites.contains(suite)) << suite;
  }
  EXPECT_GE(names.size(), 120u);
}

// A warning never makes a run red: of a fault that only a warning names the score says "survived", and each such fault
// is known here.
TEST(Catalogue, OneOfTheExpectedCodesIsGrave) {
  const harness::Program program = make_program();
  const harness::CodeTable codes(program.codes);
  const std::set<std::string> only_warned_of = {"stalls"};
  for (const Planted& fault : catalogue(std::make_shared<Seams>())) {
    if (fault.exit_code != 0 || fault.any_code) continue;
    const bool is_grave =
        std::any_of(fault.expected_codes.begin(), fault.expected_codes.end(), [&](const std::string& code) {
          const harness::Code* row = codes.find(code);
          return row != nullptr && row->severity > reports::Severity::warn;
        });
    EXPECT_NE(is_grave, only_warned_of.contains(fault.name)) << fault.name;
  }
}

TEST(Catalogue, TheHarnessKnowsTheSameFaults) {
  const auto ours = catalogue(std::make_shared<Seams>());
  const auto theirs = faults(std::make_shared<Seams>());
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(ours[i].name, theirs[i].name);
}

}  // namespace
}  // namespace suites
