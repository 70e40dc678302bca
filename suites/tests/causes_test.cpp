// The table of causes: without a flaw, and what it says of findings as they come.
#include "suites/causes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/codes.hpp"
#include "suites/codes.hpp"

namespace suites {
namespace {

TEST(Causes, TheTableHasNoFlaw) {
  std::vector<std::string_view> known;
  const auto own = finding_codes();
  for (const harness::Code& code : own) known.push_back(code.id);
  for (const harness::Code& code : harness::own_codes()) known.push_back(code.id);
  const auto rules = causes();
  EXPECT_THAT(reports::flaws(rules, known), testing::IsEmpty());
}

}  // namespace
}  // namespace suites
