// What a run's report says of a planted fault, on made-up reports.
#include "suites/selftest/score.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace suites::selftest {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Planted fault(const std::string& name, const std::vector<std::string>& codes, const std::string& group = "kernels",
              const std::string& found_by = "parity") {
  return {{name, "what it does", codes, nullptr}, group, found_by, /*must_catch=*/true};
}

Json finding(const std::string& code, const std::string& severity = "block") {
  return {{"code", code}, {"severity", severity}, {"title", "a title"}};
}

// A report of a run with the fault "leak" in it.
Evidence red(const std::vector<Json>& findings, const std::vector<std::string>& first_cause,
             const std::string& verdict = "NOT READY", int exit_code = 1) {
  Evidence evidence;
  evidence.report = {{"run", {{"faults", {"leak"}}}},
                     {"verdict", verdict},
                     {"reasons", {"a reason"}},
                     {"findings", Json::array()},
                     {"suites", {{{"cases", {{{"findings", findings}}}}}}},
                     {"causes", {{{"codes", first_cause}}, {{"codes", {"NSA-N001"}}}}}};
  evidence.exit_code = exit_code;
  return evidence;
}
Evidence ready() {
  Evidence evidence = red({}, {}, "READY", 0);
  evidence.report["causes"] = Json::array();
  return evidence;
}

TEST(Judge, CaughtWithTheRightCauseFirst) {
  Evidence evidence = red({finding("NSA-N001"), finding("NSA-N005"), finding("NSA-N001")}, {"NSA-N005"});
  evidence.began = "2026-11-26T07:00:59.052Z";
  evidence.findings = {finding("NSA-N001"), finding("NSA-N005"), finding("NSA-N005")};
  evidence.findings[0]["t"] = "2026-11-26T07:01:00.000Z";
  evidence.findings[1]["t"] = "2026-11-26T07:01:02.552Z";
  evidence.findings[2]["t"] = "2026-11-26T07:01:09.000Z";
  const Trial trial = judge(fault("leak", {"NSA-N005"}), evidence);
  EXPECT_EQ(trial.outcome, Outcome::caught);
  EXPECT_TRUE(trial.cause_first);
  EXPECT_THAT(trial.found, ElementsAre("NSA-N001", "NSA-N005"));
  ASSERT_TRUE(trial.seconds);
  EXPECT_DOUBLE_EQ(*trial.seconds, 3.5);
}

TEST(Judge, CaughtBehindAnotherCause) {
  const Trial trial = judge(fault("leak", {"NSA-N005"}), red({finding("NSA-N005")}, {"NSA-N001"}));
  EXPECT_EQ(trial.outcome, Outcome::caught);
  EXPECT_FALSE(trial.cause_first);
  EXPECT_FALSE(trial.seconds) << "the journal holds no time";
}

TEST(Judge, AWarningCatchesNothing) {
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), red({finding("NSA-N005", "warn")}, {}, "READY", 0)).outcome,
            Outcome::survived);
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), red({finding("NSA-N005", "no such word")}, {})).outcome,
            Outcome::caught);
}

TEST(Judge, ACrashSaysNothingOfTheFault) {
  const Trial trial = judge(fault("leak", {"NSA-N005"}), red({finding("NSA-X001"), finding("NSA-X004")}, {"NSA-X001"}));
  EXPECT_EQ(trial.outcome, Outcome::by_crash);
  EXPECT_EQ(judge(fault("leak", {"NSA-X001"}), red({finding("NSA-X001")}, {"NSA-X001"})).outcome, Outcome::caught);
}

TEST(Judge, AnotherReasonIsNoCatch) {
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), red({finding("NSA-X001"), finding("NSA-G001")}, {"NSA-G001"})).outcome,
            Outcome::other_reason);
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), red({}, {}, "CONDITIONAL", 8)).outcome, Outcome::other_reason);
}

TEST(Judge, ReadyIsSurvivedAndOnlyReadyIs) {
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), ready()).outcome, Outcome::survived);
  Evidence lies = ready();
  lies.exit_code = 1;
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), lies).outcome, Outcome::other_reason);
  Evidence red_in_green = red({finding("NSA-N005")}, {"NSA-N005"}, "READY", 0);
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), red_in_green).outcome, Outcome::other_reason);
}

TEST(Judge, WithoutAReportNothingIsKnown) {
  Evidence none;
  none.exit_code = 0;
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), none).outcome, Outcome::broken);
  none.exit_code = 2;  // its command line was refused
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), none).outcome, Outcome::broken);
  none.exit_code = 128 + 11;  // the program itself died
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), none).outcome, Outcome::by_crash);
  none.exit_code = 130;  // somebody stopped it
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), none).outcome, Outcome::broken);
  none.exit_code = 128 + 9;
  none.trouble = "still running after 600 s, and killed";
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), none).outcome, Outcome::broken);
}

TEST(Judge, AReportOfARunWithoutTheFaultIsNone) {
  Evidence other = red({finding("NSA-N005")}, {"NSA-N005"});
  other.report["run"]["faults"] = {"another"};
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), other).outcome, Outcome::broken);
  other.report["run"]["faults"] = Json::array();
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), other).outcome, Outcome::broken);
  other.report["run"] = "text";
  EXPECT_EQ(judge(fault("leak", {"NSA-N005"}), other).outcome, Outcome::broken);
}

TEST(Judge, AnExitCodeMayBeWhatIsExpected) {
  Planted lost = fault("lost", {});
  lost.exit_code = 4;
  Evidence evidence;
  evidence.exit_code = 4;
  EXPECT_EQ(judge(lost, evidence).outcome, Outcome::caught);
  evidence.exit_code = 0;
  EXPECT_EQ(judge(lost, evidence).outcome, Outcome::broken);
}

TEST(FalseAlarms, AreFindingsAboveWarnAndWhatIsNotReady) {
  EXPECT_THAT(false_alarms(ready()), IsEmpty());
  EXPECT_THAT(false_alarms(red({finding("NSA-E031", "warn")}, {}, "READY", 0)), IsEmpty());
  EXPECT_THAT(false_alarms(red({finding("NSA-N005")}, {})), ElementsAre("NSA-N005 a title"));
  EXPECT_THAT(false_alarms(red({}, {}, "CONDITIONAL", 8)), ElementsAre("a reason"));
}

TEST(Seconds, BetweenTwoTimesOfAJournal) {
  EXPECT_EQ(seconds_between("2026-12-31T23:59:59.900Z", "2027-01-01T00:00:00.100Z").value_or(-1) > 0.19, true);
  EXPECT_FALSE(seconds_between("2026-12-31 23:59:59", "2027-01-01T00:00:00.100Z"));
  EXPECT_FALSE(seconds_between("", ""));
  EXPECT_FALSE(seconds_between("2026-12-31T23:59:59.900Z", "2027-01-01T00:00:00.100Zjunk"));
}

Trial trial(const std::string& name, Outcome outcome, const std::string& group, const std::string& found_by,
            std::optional<double> seconds = {}, bool cause_first = false) {
  Trial t;
  t.fault = name;
  t.outcome = outcome;
  t.group = group;
  t.found_by = found_by;
  t.seconds = seconds;
  t.cause_first = cause_first;
  t.must_catch = true;
  return t;
}

TEST(Scores, CountByGroupAndBySuite) {
  const std::vector<Trial> trials = {trial("a", Outcome::caught, "kernels", "parity,s_sweep", 1, true),
                                     trial("b", Outcome::caught, "kernels", "parity", 4),
                                     trial("c", Outcome::survived, "init", "parity/attention[S=1,x=2]"),
                                     trial("d", Outcome::not_run, "init", "training"),
                                     trial("e", Outcome::by_crash, "init", "s_sweep"),
                                     trial("f", Outcome::broken, "init", "s_sweep")};
  const auto groups = by_group(trials);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].name, "kernels");
  EXPECT_EQ(groups[0].caught, 2u);
  EXPECT_EQ(groups[0].cause_first, 1u);
  EXPECT_EQ(groups[0].median_s, 2.5);
  EXPECT_EQ(groups[1].planted, 4u);
  EXPECT_EQ(groups[1].not_run, 1u);
  EXPECT_FALSE(groups[1].median_s);
  const auto suites = by_suite(trials);
  ASSERT_EQ(suites.size(), 3u);
  EXPECT_EQ(suites[0].name, "parity");
  EXPECT_EQ(suites[0].planted, 3u);
  EXPECT_EQ(suites[1].name, "s_sweep");
  EXPECT_EQ(suites[1].planted, 3u);
  EXPECT_THAT(missed(trials), ElementsAre("c", "e"));
}

TEST(Scores, CodesThatCatchNothingAndThatNobodyExpects) {
  const std::vector<Planted> catalogue = {fault("a", {"NSA-N001", "NSA-N002"}), fault("b", {"NSA-N003"})};
  Trial a = judge(catalogue[0], Evidence{}), b = not_run(catalogue[1], "needs a GPU");
  a.outcome = Outcome::caught;
  a.found = {"NSA-N001", "NSA-N004"};
  const std::vector<Trial> trials = {a, b};
  const std::vector<std::string> codes = {"NSA-N001", "NSA-N002", "NSA-N003", "NSA-N004"};
  const CodeScores scores = by_code(trials, catalogue, codes);
  ASSERT_EQ(scores.caught.size(), 1u);
  EXPECT_EQ(scores.caught[0], std::pair(std::string("NSA-N001"), std::size_t{1}));
  EXPECT_THAT(scores.silent, ElementsAre("NSA-N002")) << "of a fault that was not run nothing is said";
  EXPECT_THAT(scores.unplanted, ElementsAre("NSA-N004"));
}

// R: binom.test(k, n, alternative = "less")$conf.int[2]; qbeta(.95, k + 1, n - k).
TEST(ClopperPearson, KnownValues) {
  EXPECT_NEAR(clopper_pearson_upper(0, 1), 0.95, 1e-12);
  EXPECT_NEAR(clopper_pearson_upper(0, 10), 0.2588656, 1e-7);
  EXPECT_NEAR(clopper_pearson_upper(0, 59), 0.0495076, 1e-7);
  EXPECT_NEAR(clopper_pearson_upper(1, 10), 0.3941633, 1e-7);
  EXPECT_NEAR(clopper_pearson_upper(5, 10), 0.7775589, 1e-7);
  EXPECT_NEAR(clopper_pearson_upper(9, 10), 0.9948838, 1e-7);
  EXPECT_EQ(clopper_pearson_upper(10, 10), 1);
  EXPECT_EQ(clopper_pearson_upper(0, 0), 1) << "nothing is known";
  EXPECT_THROW((void)clopper_pearson_upper(2, 1), std::invalid_argument);
}

TEST(Outcomes, EveryWordIsReadBack) {
  for (const Outcome outcome : {Outcome::caught, Outcome::by_crash, Outcome::other_reason, Outcome::survived,
                                Outcome::equivalent, Outcome::not_run, Outcome::broken})
    EXPECT_EQ(parse_outcome(to_string(outcome)), outcome);
  EXPECT_FALSE(parse_outcome("fine"));
}

}  // namespace
}  // namespace suites::selftest
