#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using sample::finding;
using sample::run_of;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::size_t cells(const std::string& row) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < row.size(); ++i) n += row[i] == '|' && (i == 0 || row[i - 1] != '\\') ? 1 : 0;
  return n;
}

// Every row of a table has as many borders as its head: no text of a case has leaked into the structure.
void expect_whole_tables(const std::string& text) {
  std::istringstream lines(text);
  std::size_t head = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| ", 0) != 0) {
      head = 0;
      continue;
    }
    if (head == 0) head = cells(line);
    EXPECT_EQ(cells(line), head) << line;
  }
}

TEST(Markdown, Golden) {
  const std::string text = to_markdown(sample::mixed());
  sample::expect_golden("mixed.md", text);
  expect_whole_tables(text);
}

TEST(Markdown, HasEverySectionInOrder) {
  const std::string text = to_markdown(sample::mixed());
  std::size_t at = 0;
  for (const auto* title :
       {"# Validation report: NOT READY", "> **Planted faults: nan-at-block-boundary**", "## Summary", "## Findings",
        "## Results", "## Performance against gates", "## What was not tested", "## Next steps", "## Environment"}) {
    const auto next = text.find(title, at);
    ASSERT_NE(next, std::string::npos) << title;
    at = next;
  }
}

TEST(Markdown, ACleanRunIsShortAndSaysWhatItRestsOn) {
  const std::string text = to_markdown(run_of({Status::pass}));
  EXPECT_THAT(text, StartsWith("# Validation report: READY\n"));
  EXPECT_THAT(text, HasSubstr("**READY**: ready for the standard level."));
  EXPECT_THAT(text, HasSubstr("1 of 1 planned cases ran"));
  EXPECT_THAT(text, HasSubstr("## Findings\n\nNone."));
  EXPECT_THAT(text, Not(HasSubstr("Planted faults")));
  EXPECT_THAT(text, Not(HasSubstr("ncomplete")));
}

TEST(Markdown, SaysWhichWaysWereTaken) {
  reports::Run run = run_of({Status::pass, Status::pass});
  EXPECT_THAT(to_markdown(run), Not(HasSubstr("Ways taken")));
  for (Case& c : run.suites[0].cases)
    c.facts =
        Json{{"routes",
              Json::array(
                  {{{"op", "attend"}, {"backend", "cuda"}, {"variant", "in_one"}, {"why", "default"}, {"calls", 2}}})}};
  EXPECT_THAT(to_markdown(run), HasSubstr("## Ways taken\n\n| function | ways |\n| --- | --- |\n"
                                          "| `attend` | cuda/in_one in 2 cases |\n"));
}

TEST(Markdown, AnIncompleteRunHasItsBanner) {
  reports::Run run = run_of({Status::pass, Status::not_run});
  run.complete = false;
  run.torn_tail = true;
  EXPECT_THAT(to_markdown(run),
              HasSubstr("> **Incomplete run** - its journal has no end and its last line is cut off."));
  run.complete = true;
  run.interruption = ExitCode::interrupted;
  EXPECT_THAT(to_markdown(run), HasSubstr("> **Interrupted run** - stopped with exit code 130"));
}

TEST(Markdown, ACommandCannotLeaveItsBlock) {
  reports::Run run = run_of({Status::fail});
  run.suites[0].cases[0].findings = {finding(Severity::block)};
  run.suites[0].cases[0].findings[0].repro = "echo ```\n# not a title";
  EXPECT_THAT(to_markdown(run), HasSubstr("````\necho ```\n# not a title\n````"));
}

TEST(Markdown, HostileTextStaysText) {
  reports::Run run = run_of({Status::fail});
  Case& c = run.suites[0].cases[0];
  c.id = "alpha/`x`|y";
  c.findings = {finding(Severity::block)};
  c.findings[0].message = "a | b\n| c | <script>alert(1)</script>";
  c.findings[0].evidence = Json{{"k|ey", "v|al\nue"}};
  const std::string text = to_markdown(run);
  EXPECT_THAT(text, Not(HasSubstr("<script>")));
  expect_whole_tables(text);
}

TEST(Markdown, StacksAreLinesOfABlock) {
  reports::Run run = run_of({Status::crash});
  run.suites[0].cases[0].findings = {finding(Severity::block)};
  run.suites[0].cases[0].findings[0].evidence = Json{{"stacks", {"thread 7 x, state S", "  f<int>()+0x1 (x)"}}};
  EXPECT_THAT(to_markdown(run), HasSubstr("stacks:\n\n```\nthread 7 x, state S\n  f<int>()+0x1 (x)\n```\n"));
}

TEST(Markdown, ManyOccurrencesAreCountedAndCut) {
  reports::Run run = run_of(std::vector<Status>(30, Status::fail));
  for (auto& c : run.suites[0].cases) c.findings = {finding(Severity::block)};
  const std::string text = to_markdown(run);
  EXPECT_THAT(text, HasSubstr("30 occurrences"));
  EXPECT_THAT(text, HasSubstr("- and 25 more, in report.json"));
}

}  // namespace
}  // namespace reports
