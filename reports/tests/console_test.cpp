#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using sample::finding;
using sample::run_of;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Console, Golden) { sample::expect_golden("mixed.console.txt", to_console(sample::mixed(), false)); }

TEST(Console, TheLastLineIsTheSummaryAndNoOtherLooksLikeIt) {
  reports::Run run = sample::mixed();
  run.suites[0].cases[0].findings[0].message = "nothing";
  for (const bool color : {false, true}) {
    const auto lines = lines_of(to_console(run, color));
    EXPECT_EQ(lines.back(), "summary: 2 passed, 3 failed, 1 skipped, 1 blocked");
    const std::regex summary("[0-9]+ passed, [0-9]+ failed");
    for (std::size_t i = 0; i + 1 < lines.size(); ++i) EXPECT_FALSE(std::regex_search(lines[i], summary)) << lines[i];
  }
  EXPECT_EQ(to_console(run, false).back(), '\n');
  EXPECT_EQ(lines_of(to_console(run_of({}), false)).back(), "summary: 0 passed, 0 failed, 0 skipped");
}

TEST(Console, ColourOnlyWhenAsked) {
  EXPECT_THAT(to_console(sample::mixed(), false), Not(HasSubstr("\x1b")));
  EXPECT_THAT(to_console(sample::mixed(), true), HasSubstr("\x1b[31m"));
}

TEST(Console, VerdictWithItsScope) {
  EXPECT_THAT(to_console(run_of({Status::pass}), false), HasSubstr("verdict: READY, ready for the standard level\n"));
  reports::Run run = run_of({Status::pass});
  run.complete = false;
  EXPECT_THAT(to_console(run, false), HasSubstr("incomplete:"));
}

TEST(Console, AFailureWithoutAFindingIsNamed) {
  reports::Run run = run_of({Status::pass, Status::error});
  run.suites[0].cases[1].reason = "std::bad_alloc";
  EXPECT_THAT(to_console(run, false), HasSubstr("error alpha/case1 std::bad_alloc"));
}

TEST(Console, TextOfACaseStaysOnItsLineAndBringsNoEscapes) {
  reports::Run run = run_of({Status::fail});
  run.suites[0].cases[0].findings = {finding(Severity::block)};
  run.suites[0].cases[0].findings[0].message = "x\nsummary: 9 passed\x1b[2J\x07";
  const std::string text = to_console(run, false);
  EXPECT_THAT(text, HasSubstr("x summary: 9 passed[2J\n"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace reports
