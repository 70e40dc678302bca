// What came out but for figures: findings, outcomes, checks, ways, causes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reports/tests/support/compared.hpp"
#include "reports/tests/support/sample.hpp"

namespace reports {
namespace {

using sample::Compared;
using sample::names;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Compare, ResultsThatDifferForNoRecordedReasonAreSaidToBeNotRepeatable) {
  Compared runs;
  runs.at(1).status = Status::fail;
  runs.at(1).findings = {sample::finding(Severity::block)};
  runs.at(1, 1).facts["load"] = {{"busy", true}};
  const Comparison all = runs();
  EXPECT_EQ(all.steps[0].went_in, 0);
  EXPECT_EQ(all.steps[0].came_out, 3) << "verdict, finding, outcome";
  EXPECT_EQ(all.steps[0].verdict,
            "Nothing that is recorded of what went in differs, and the results do: they are not repeatable, or it is a "
            "matter of the machine; others were at work on the machine in 1 case of run 2.");
  EXPECT_THAT(to_text(all), AllOf(testing::ContainsRegex("verdict +READY +NOT READY\n"),
                                  testing::ContainsRegex("NSA-T001 alpha/case0 +- +block +new .A title.\n"),
                                  testing::ContainsRegex("alpha/case0 +pass +fail\n")));
  runs[1].provenance["cuda"]["driver"] = "590.2";
  EXPECT_EQ(runs().steps[0].verdict, "") << "there may be a reason";
}

TEST(Compare, InputsThatDifferAndResultsThatDoNot) {
  Compared runs;
  runs[1].provenance["cuda"]["driver"] = "590.2";
  runs.at(0).metrics = {{"m", 1, "1"}};
  runs.at(1).metrics = {{"m", 2, "1"}};
  EXPECT_EQ(runs().steps[0].verdict,
            "What went in differs, and nothing of what came out does that can be judged (1 cannot).");
}

// No interval says that a loss has changed; but from the same seed it would be the same.
TEST(Compare, FiguresThatAreNoTimesAndNotTheSameBitForBitAreCounted) {
  Compared runs;
  runs.at(0).metrics = {{"loss", 5.5, "nat"}, {"step", 1, "ms"}, {"to_model", 2, "1"}};
  runs.at(1).metrics = {{"loss", 5.6, "nat"}, {"step", 2, "ms"}, {"to_model", 3, "1"}};
  EXPECT_EQ(runs().steps[0].not_judged, 3);
  EXPECT_EQ(runs().steps[0].inexact, 1) << "neither the time nor the ratio beside it";
  EXPECT_THAT(runs().steps[0].verdict,
              HasSubstr("can be judged (3 cannot); 1 figure that is no time is not the same bit for bit."));
  runs.at(0, 1).metrics = {{"error", 2, ""}};
  runs.at(1, 1).metrics = {{"error", 3, ""}};
  EXPECT_EQ(runs().steps[0].inexact, 2);
  EXPECT_THAT(runs().steps[0].verdict, HasSubstr("2 figures that are no times are"));
  runs[1].provenance["cuda"]["driver"] = "590.2";
  EXPECT_THAT(runs().steps[0].verdict, Not(HasSubstr("bit for bit"))) << "there may be a reason";
}

TEST(Compare, FindingsThatAreNewGoneStillThereAndChanged) {
  Compared runs;
  const auto with = [](const std::string& code, Severity severity, Json evidence) {
    Finding f = sample::finding(severity);
    f.code = code;
    f.evidence = std::move(evidence);
    return f;
  };
  runs.at(0).findings = {with("GONE", Severity::block, {}), with("SAME", Severity::block, {{"x", 1}}),
                         with("PLACE", Severity::block, {{"layer", 1}, {"op", "a"}}),
                         with("SEVERITY", Severity::block, {}), with("EVIDENCE", Severity::block, {{"error", 0.5}})};
  runs.at(1).findings = {with("SAME", Severity::block, {{"x", 1}}),
                         with("PLACE", Severity::block, {{"layer", 2}, {"op", "a"}}),
                         with("SEVERITY", Severity::degrade, {}), with("EVIDENCE", Severity::block, {{"error", 0.7}}),
                         with("NEW", Severity::block, {})};
  for (std::size_t i = 0; i < 2; ++i) runs.at(i).status = Status::fail;
  const Comparison all = runs();
  std::map<std::string, FindingRow::Step> steps;
  for (const FindingRow& row : all.findings) steps[row.code] = row.steps.at(0);
  using Change = FindingRow::Change;
  EXPECT_EQ(steps["NEW"].change, Change::appeared);
  EXPECT_EQ(steps["GONE"].change, Change::gone);
  EXPECT_EQ(steps["SAME"].change, Change::same);
  EXPECT_THAT(steps["SEVERITY"].what, ElementsAre("severity"));
  EXPECT_THAT(steps["PLACE"].what, ElementsAre("place", "evidence"));
  EXPECT_THAT(steps["EVIDENCE"].what, ElementsAre("evidence"));
  EXPECT_EQ(all.steps[0].came_out, 4) << "not the evidence, which nobody can judge";
  EXPECT_EQ(all.steps[0].not_judged, 1);
  const std::string text = to_text(all);
  EXPECT_THAT(text,
              testing::ContainsRegex("SEVERITY alpha/case0 +block +degrade +severity block -> degrade .A title.\n"));
  EXPECT_THAT(text, HasSubstr("another place; evidence: layer 1 -> 2 (A title)\n"));
  EXPECT_THAT(text, HasSubstr("evidence: error 0.5 -> 0.7\n"));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("SAME alpha")), HasSubstr("1 finding still there, the same in all runs")));
}

TEST(Compare, OfSeveralFindingsOfACodeEachIsFollowedAtItsPlace) {
  Compared runs;
  const auto at_layer = [](int layer) {
    Finding f = sample::finding(Severity::block);
    f.evidence = {{"layer", layer}};
    return f;
  };
  runs.at(0).findings = {at_layer(1), at_layer(2), at_layer(3)};
  runs.at(1).findings = {at_layer(3), at_layer(1)};
  for (std::size_t i = 0; i < 2; ++i) runs.at(i).status = Status::fail;
  const Comparison all = runs();
  std::vector<FindingRow::Change> changes;
  for (const FindingRow& row : all.findings) changes.push_back(row.steps.at(0).change);
  EXPECT_THAT(changes, ElementsAre(FindingRow::Change::same, FindingRow::Change::gone, FindingRow::Change::same));
}

TEST(Compare, AFindingThatMovesToAnotherCaseHasMoved) {
  Compared runs;
  runs.at(0, 0).findings = runs.at(1, 1).findings = {sample::finding(Severity::warn)};
  const Comparison all = runs();
  ASSERT_EQ(all.findings.size(), 1U);
  EXPECT_THAT(all.findings[0].steps[0].what, ElementsAre("place"));
  EXPECT_THAT(to_text(all), HasSubstr("moved from alpha/case0 (A title)\n"));
}

// A case that crashed, or never ran, does not say that a finding is gone.
TEST(Compare, NobodySaysThatAFindingIsGoneWhoseCaseDidNotGetToItsEnd) {
  for (const Status status : {Status::not_run, Status::crash, Status::hang, Status::blocked, Status::skip,
                              Status::inconclusive, Status::cancelled, Status::error, Status::infra_error}) {
    Compared runs;
    runs.at(0).findings = {sample::finding(Severity::warn)};
    runs.at(1).status = status;
    const Comparison all = runs();
    EXPECT_EQ(all.findings.at(0).by_run.at(1).seen, FindingRow::Seen::no_answer) << to_string(status);
    EXPECT_EQ(all.findings.at(0).steps.at(0).change, FindingRow::Change::no_longer_told);
    EXPECT_THAT(to_text(all), HasSubstr("nobody can tell now (A title)"));
  }
}

TEST(Compare, FindingsOfTheRunItself) {
  Compared runs;
  runs[1].findings = {sample::finding(Severity::degrade, "infrastructure")};
  EXPECT_EQ(runs().findings.at(0).steps.at(0).change, FindingRow::Change::appeared);
  EXPECT_THAT(to_text(runs()), HasSubstr("NSA-T001 the run"));
  runs[0].complete = false;
  EXPECT_EQ(runs().findings.at(0).steps.at(0).change, FindingRow::Change::first_told);
}

TEST(Compare, OutcomesWithTheirReasonsAndChecksWithTheirBounds) {
  Compared runs;
  runs.at(0).status = runs.at(1).status = Status::skip;
  runs.at(0).reason_code = "no_cuda";
  runs.at(1).reason_code = "unsupported";
  runs.at(0, 1).checks = {
      {"holds", true, 1, "<=", 2, "1"}, {"bound", true, 1, "<=", 2, "1"}, {"m", true, 1, "<=", 2, ""}};
  runs.at(1, 1).checks = {
      {"holds", false, 3, "<=", 2, "1"}, {"bound", true, 1, "<=", 9, "1"}, {"m", true, 2, "<=", 2, ""}};
  const Comparison all = runs();
  EXPECT_THAT(names(all.outcomes), ElementsAre("alpha/case0"));
  ASSERT_EQ(all.checks.size(), 2U);
  EXPECT_TRUE(all.checks[0].decides);
  EXPECT_FALSE(all.checks[1].decides);
  EXPECT_THAT(to_text(all), AllOf(testing::ContainsRegex("alpha/case0 +skip \\(no_cuda\\) +skip \\(unsupported\\)\n"),
                                  testing::ContainsRegex("holds +holds: <= 2 +fails: <= 2\n"),
                                  testing::ContainsRegex("bound +holds: <= 2 +holds: <= 9\n")));
  EXPECT_EQ(all.steps[0].not_judged, 1) << "the bound";
}

TEST(Compare, WaysThatRanInCasesOfAllRuns) {
  Compared runs;
  const auto route = [](const char* backend, const char* kernel) {
    return Json::array({{{"op", "attend"},
                         {"backend", backend},
                         {"variant", "in_one"},
                         {"why", "w"},
                         {"calls", 2},
                         {"kernels", Json::array({{{"branch", ""}, {"pass", "forward"}, {"kernel", kernel}}})}}});
  };
  runs.at(0).facts["routes"] = route("cuda", "joint");
  runs.at(1).facts["routes"] = route("cuda", "joint");
  runs.at(1, 1).facts["routes"] = route("sdpa", "");
  runs.at(0, 1).status = Status::skip;
  EXPECT_THAT(names(runs().ways), IsEmpty()) << "a case that ran in one only";
  runs.at(1).facts["routes"] = route("cuda", "parts");
  EXPECT_THAT(names(runs().ways), ElementsAre("attend"));
  EXPECT_THAT(to_text(runs()), testing::ContainsRegex("attend +cuda/in_one \\(joint\\) +cuda/in_one \\(parts\\)\n"));
  for (const Json& odd : {Json(3), Json::array({3}), Json::array({{{"op", 3}}})}) {
    runs.at(1).facts["routes"] = odd;
    EXPECT_NO_THROW((void)runs());
  }
}

TEST(Compare, CausesWithTheirRank) {
  Compared runs;
  for (std::size_t i = 0; i < 2; ++i) runs.at(i).status = Status::fail;
  Finding first = sample::finding(Severity::block), second = sample::finding(Severity::degrade);
  first.code = "NSA-T002";
  runs.at(0).findings = {second};
  runs.at(1).findings = {second, first};
  const Comparison all = runs();
  EXPECT_THAT(names(all.causes), testing::UnorderedElementsAre("NSA-T001", "NSA-T002"));
  EXPECT_THAT(to_text(all), testing::ContainsRegex("NSA-T002 +- +1. \\(block\\) +A title"));
  runs.at(0).findings = {second, first};
  EXPECT_THAT(names(runs().causes), IsEmpty());
}

}  // namespace
}  // namespace reports
