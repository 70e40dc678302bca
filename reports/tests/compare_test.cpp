#include "reports/compare.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reports/schema.hpp"
#include "reports/tests/support/compared.hpp"
#include "reports/tests/support/sample.hpp"
#include "reports/tests/support/schema_validator.hpp"

namespace reports {
namespace {

using sample::Compared;
using sample::interval;
using sample::kNaN;
using sample::names;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// -- three runs, unfinished ones, and what cannot be compared

TEST(Compare, OfThreeRunsEachIsComparedWithTheOneBeforeItAndARowShowsAll) {
  Compared runs(3);
  runs[1].provenance["cuda"]["driver"] = "590.2";
  runs[2].provenance["cuda"]["driver"] = "590.2";
  for (std::size_t i = 0; i < 3; ++i) {
    const double value = i == 2 ? 200 : 100;
    runs.at(i).metrics = {{"speed", value, "tok/s"}};
    runs.at(i).facts["speed"] = interval(value - 1, value + 1);
  }
  runs.at(1).status = Status::fail;
  runs.at(1).findings = {sample::finding(Severity::block)};
  const Comparison all = runs();
  ASSERT_EQ(all.steps.size(), 2U);
  EXPECT_EQ(all.steps[0].went_in, 1);
  EXPECT_EQ(all.steps[0].verdict, "");
  EXPECT_EQ(all.steps[1].went_in, 0);
  EXPECT_THAT(all.steps[1].verdict, HasSubstr("they are not repeatable"));
  EXPECT_EQ(all.findings.at(0).steps[0].change, FindingRow::Change::appeared);
  EXPECT_EQ(all.findings.at(0).steps[1].change, FindingRow::Change::gone);
  const std::string text = to_text(all);
  EXPECT_THAT(text, testing::ContainsRegex("cuda.driver +580.1 +590.2 +590.2\n"));
  EXPECT_THAT(text, testing::ContainsRegex("NSA-T001 alpha/case0 +- +block +- +2: new; 3: gone .A title.\n"));
  EXPECT_THAT(text, testing::ContainsRegex("speed +100 tok/s +100 tok/s +200 tok/s +3: .100.0 %, beyond the noise\n"));
  EXPECT_THAT(text, HasSubstr("\n2 -> 3: Nothing that is recorded of what went in differs"));
  EXPECT_THAT(text, HasSubstr("\ncompare: 1 -> 2: 1 difference in what went in"));
}

TEST(Compare, AFindingThatComesBackIsTheSameRow) {
  Compared runs(3);
  runs.at(0).findings = runs.at(2).findings = {sample::finding(Severity::warn)};
  const Comparison all = runs();
  ASSERT_EQ(all.findings.size(), 1U);
  EXPECT_THAT(to_text(all), testing::ContainsRegex("warn +- +warn +2: gone; 3: new .A title.\n"));
}

TEST(Compare, AnUnfinishedRunIsComparedAsFarAsItGoesAndCalledSo) {
  Compared runs;
  runs[1].complete = false;
  runs.at(1, 1).status = Status::not_run;
  runs.at(1, 1).reason_code = "not_reached";
  const Comparison all = runs();
  EXPECT_EQ(all.steps[0].came_out, 0) << "what was not reached, and the verdict of an incomplete run, are no results";
  EXPECT_EQ(all.steps[0].in_both, 1);
  EXPECT_THAT(all.steps[0].verdict, testing::EndsWith("; run 2 is unfinished."));
  EXPECT_THAT(to_text(all),
              AllOf(HasSubstr("unfinished: its journal has no end; it is compared as far as it goes, 1 of 2 cases\n"),
                    testing::ContainsRegex("alpha/case1 +pass +not_run \\(not_reached\\)\n"),
                    testing::ContainsRegex("verdict +READY +CONDITIONAL\n")));
  runs.at(1, 0).status = Status::crash;
  EXPECT_EQ(runs().steps[0].came_out, 1) << "but a case that ran to another end is one";
  runs[1].complete = true;
  runs[1].interruption = ExitCode::interrupted;
  EXPECT_THAT(to_text(runs()), HasSubstr("unfinished: interrupted with exit code 130;"));
}

// Nothing to compare must not look like no difference.
TEST(Compare, WhereNoCaseRanInBothItSaysThatNothingWasCompared) {
  Compared runs;
  for (std::size_t i = 0; i < 2; ++i) runs.at(1, i).status = Status::skip;
  EXPECT_EQ(runs().steps[0].in_both, 0);
  EXPECT_EQ(runs().steps[0].verdict, "No case ran in both: nothing of what came out can be compared.");
  runs[1].suites[0].name = "beta";
  for (std::size_t i = 0; i < 2; ++i) {
    runs.at(1, i).suite = "beta";
    runs.at(1, i).id = "beta/case" + std::to_string(i);
  }
  EXPECT_THAT(names(runs().plan), ElementsAre("suite alpha", "suite beta"));
  EXPECT_THAT(to_text(runs()), AllOf(HasSubstr("No case ran in both"), HasSubstr("0 cases ran in both")));
}

TEST(Compare, RefusesFewerThanTwoRunsAndTheSameRunTwice) {
  const auto refusal = [](const std::vector<NamedRun>& runs) {
    try {
      (void)compare(runs);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("was accepted");
  };
  Compared runs(3);
  EXPECT_THAT(refusal({}), HasSubstr("no run"));
  EXPECT_THAT(refusal({runs.runs_[0]}), HasSubstr("out/1: one run only"));
  runs[2].id = "r1";
  EXPECT_THAT(refusal(runs.runs_), HasSubstr("out/1 and out/3 are the same run, r1"));
}

// -- the writers

TEST(Compare, TheJsonIsAsTheSchemaSays) {
  const Json schema = Json::parse(comparison_schema());
  Compared many(3);
  many.runs_.push_back({"mixed", sample::mixed()});
  many.at(1).metrics = {{"m", number(kNaN), "1"}};
  many.at(0).metrics = {{"m", 1, "1"}};
  many.at(0).facts["m"] = interval(0, 2);
  many[2].complete = false;
  many[1].interruption = ExitCode::terminated;
  many.at(0).checks = {{"c", true, 1, "<=", 2, ""}};
  many.at(1).checks = {{"c", false, number(kNaN), "<=", 2, ""}};
  for (Compared runs : {Compared(), many}) {
    const Json json = Json::parse(dump(to_json(runs())));
    EXPECT_THAT(schema::violations(schema, json), IsEmpty());
    for (const char* where : {"/runs", "/steps", "/went_in", "/came_out/findings", "/schema", "/runs/0/complete"}) {
      Json bad = json;
      bad[Json::json_pointer(where)] = 3;
      EXPECT_THAT(schema::violations(schema, bad), Not(IsEmpty())) << where;
    }
  }
}

TEST(Compare, TheListsOfWordsAreThoseOfTheSchema) {
  const Json schema = Json::parse(comparison_schema());
  Json seen = Json::array(), finding = Json::array(), figure = Json::array();
  for (int i = 0; i <= static_cast<int>(FindingRow::Seen::no_answer); ++i)
    seen.push_back(to_string(static_cast<FindingRow::Seen>(i)));
  for (int i = 0; i <= static_cast<int>(FindingRow::Change::no_longer_told); ++i)
    finding.push_back(to_string(static_cast<FindingRow::Change>(i)));
  for (int i = 0; i <= static_cast<int>(Figure::Change::not_run); ++i)
    figure.push_back(to_string(static_cast<Figure::Change>(i)));
  const Json& definitions = schema["definitions"];
  EXPECT_EQ(definitions["finding"]["properties"]["runs"]["items"]["properties"]["seen"]["enum"], seen);
  EXPECT_EQ(definitions["finding"]["properties"]["steps"]["items"]["properties"]["change"]["enum"], finding);
  EXPECT_EQ(definitions["figure"]["properties"]["steps"]["items"]["properties"]["change"]["enum"], figure);
}

TEST(Compare, TheLastLineOfTheTextSaysHowMuchIsDifferent) {
  const std::string text = to_text(Compared()());
  EXPECT_THAT(text,
              testing::EndsWith(
                  "\ncompare: no difference in what went in, no difference in what came out; 2 cases ran in both\n"));
}

TEST(Compare, TextOfARunBringsNoEscapesToTheTerminal) {
  Compared runs;
  runs.runs_[0].name = "out\x1b[2J";
  runs[1].provenance["cuda"]["driver"] = "x\x1b[31m\nsummary: 9 passed";
  runs.at(1).metrics = {{"m\x1b\n", 1, "\x1b"}};
  runs.at(1).findings = {sample::finding(Severity::warn)};
  runs.at(1).findings[0].code = "C\x1b\n";
  EXPECT_THAT(to_text(runs()), AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\nsummary"))));
}

TEST(Compare, ManyRowsAreCutAndTheRestIsCounted) {
  Compared runs;
  for (int i = 0; i < 40; ++i) {
    runs.at(0).metrics.push_back({"m" + std::to_string(i), 1, "1"});
    runs.at(1).metrics.push_back({"m" + std::to_string(i), 2 + i, "1"});
  }
  const std::string text = to_text(runs());
  EXPECT_THAT(text, AllOf(HasSubstr("and 16 more rows; --json has all"), HasSubstr("m39"), Not(HasSubstr(" m1 "))))
      << "the largest change first";
  EXPECT_EQ(to_json(runs())["came_out"]["figures"].size(), 40U);
}

}  // namespace
}  // namespace reports
