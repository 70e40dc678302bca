#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "reports/journal.hpp"
#include "reports/journal_rules.hpp"
#include "reports/tests/support/sample.hpp"

namespace reports {
namespace {

using testing::HasSubstr;

// A builder that was told the beginning of sample::Journal and then `events`.
RunBuilder told(const std::vector<std::string>& events) {
  sample::Journal journal;
  for (const auto& event : events) journal.add(event);
  std::istringstream lines(journal.text());
  RunBuilder builder;
  for (std::string line; std::getline(lines, line);) builder.apply(Json::parse(line));
  return builder;
}

std::string refusal_of_events(const std::vector<std::string>& events) {
  try {
    (void)told(events);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "was accepted";
}

// So that a writer refuses it too, and a journal stays one that can be read.
TEST(RunBuilder, RefusesAnEventWhoseBracketsNestTooDeep) {
  const auto fact = [](std::size_t depth) {
    return R"({"event": "fact", "case": "a/one", "key": "k", "value": )" + std::string(depth, '[') +
           std::string(depth, ']') + "}";
  };
  EXPECT_EQ(refusal_of_events({fact(kMostDepth - 1)}), "was accepted");
  EXPECT_THAT(refusal_of_events({fact(kMostDepth)}), HasSubstr("brackets nest deeper than 1000"));
}

TEST(RunBuilder, AFailedCheckWithoutAFindingIsAFailureWhateverTheCaseCallsItself) {
  const std::string check = R"({"event": "check", "case": "a/one", "name": "c", "pass": false, "measured": 2,)"
                            R"( "comparator": "<=", "bound": 1})";
  const std::string warning =
      R"({"event": "finding", "case": "a/one", "code": "T1", "severity": "warn", "message": "m"})";
  const std::string begin = R"({"event": "case_begin", "case": "a/one", "worker": 0, "seed": 1})";
  const auto end = [](const std::string& status) {
    return R"({"event": "case_end", "case": "a/one", "reason_code": "x", "reason": "y", "status": ")" + status + "\"}";
  };
  for (const char* status : {"pass", "skip", "inconclusive"}) {
    const reports::Run run = told({begin, check, warning, check, end(status)}).finish(false);
    const Case& one = run.suites.at(0).cases.at(0);
    EXPECT_EQ(one.status, Status::fail) << status;
    EXPECT_EQ(one.reason_code, "unexplained_check");
    EXPECT_THAT(one.reason, HasSubstr("'c' failed and no finding says so"));
    EXPECT_EQ(assess(run).verdict, Verdict::not_ready);
    EXPECT_EQ(assess(run).exit_code, ExitCode::failed);
  }
  EXPECT_EQ(told({begin, check, warning, end("pass")}).finish(false).suites.at(0).cases.at(0).status, Status::pass)
      << "with --gates report it is a warning";
  EXPECT_EQ(told({begin, check}).finish(false).suites.at(0).cases.at(0).status, Status::not_run);
}

TEST(RunBuilder, BuildsACaseFromItsEvents) {
  const reports::Run run =
      told(
          {R"({"event": "case_begin", "case": "a/one", "worker": 0, "seed": 18446744073709551615})",
           R"({"event": "phase", "case": "a/one", "name": "first"})",
           R"({"event": "phase", "case": "a/one", "name": "second"})",
           R"({"event": "metric", "case": "a/one", "name": "m", "value": "-Infinity", "unit": "ms"})",
           R"({"event": "check", "case": "a/one", "name": "c", "pass": true, "measured": 1, "comparator": "in",
                            "bound": [0, 2], "unit": ""})",
           R"({"event": "fact", "case": "a/one", "key": "k", "value": {"x": 1}})",
           R"({"event": "artifact", "case": "a/one", "path": "p.bin"})",
           R"({"event": "finding", "case": "a/one", "code": "T1", "severity": "warn", "message": "m", "repro": "again"})",
           R"({"event": "finding", "code": "T2", "severity": "info", "message": "of the run"})",
           R"({"event": "case_end", "case": "a/one", "status": "pass", "duration_s": 1.5})",
           R"({"event": "case_end", "case": "a/two", "status": "skip", "reason_code": "no_cuda", "reason": "none"})",
           R"({"event": "run_end", "duration_s": 2.0, "case_s": 1.5})"})
          .finish(false);
  EXPECT_TRUE(run.complete);
  EXPECT_FALSE(run.torn_tail);
  EXPECT_EQ(run.started, "2026-11-21T01:31:00.000Z");
  EXPECT_EQ(run.ended, "2026-11-21T01:31:12.000Z");
  EXPECT_DOUBLE_EQ(run.duration_s, 2.0);
  EXPECT_DOUBLE_EQ(run.harness_s, 0.5);
  EXPECT_EQ(run.findings.size(), 1u);
  const Case& one = run.suites.at(0).cases.at(0);
  EXPECT_EQ(one.status, Status::pass);
  EXPECT_EQ(one.suite, "a");
  EXPECT_EQ(one.seed, 18446744073709551615u);
  EXPECT_EQ(one.last_phase, "second");
  EXPECT_EQ(one.metrics.at(0).value, "-Infinity");
  EXPECT_EQ(one.checks.at(0).bound, Json::array({0, 2}));
  EXPECT_EQ(one.facts.at("k").at("x"), 1);
  EXPECT_EQ(one.artifacts, std::vector<std::string>{"p.bin"});
  EXPECT_EQ(one.repro, "again");
  EXPECT_EQ(run.suites.at(0).cases.at(1).reason_code, "no_cuda");
  EXPECT_FALSE(run.suites.at(0).cases.at(1).required);
}

TEST(RunBuilder, ACaseThatBeginsAnewKeepsItsFindingsAlone) {
  const std::vector<std::string> first = {
      R"({"event": "case_begin", "case": "a/one", "worker": 0, "seed": 1})",
      R"({"event": "phase", "case": "a/one", "name": "first"})",
      R"({"event": "metric", "case": "a/one", "name": "m", "value": 1})",
      R"({"event": "check", "case": "a/one", "name": "c", "pass": false, "measured": 1, "comparator": ">=", "bound": 2})",
      R"({"event": "fact", "case": "a/one", "key": "k", "value": 1})",
      R"({"event": "artifact", "case": "a/one", "path": "p.bin"})",
      R"({"event": "finding", "case": "a/one", "code": "T1", "severity": "warn", "message": "m"})",
      R"({"event": "retry", "case": "a/one", "reason": "busy"})"};
  const Case one = told(first).finish(false).suites.at(0).cases.at(0);
  EXPECT_TRUE(one.metrics.empty() && one.checks.empty() && one.facts.empty() && one.artifacts.empty());
  EXPECT_TRUE(one.facts.is_object());
  EXPECT_EQ(one.last_phase, "");
  EXPECT_EQ(one.findings.size(), 1U);
  EXPECT_THAT(refusal_of_events({R"({"event": "retry", "case": "a/one"})"}), testing::HasSubstr("reason"));
}

TEST(RunBuilder, ACaseOpenAtTheEndWasInterruptedAndKeepsWhatItHad) {
  const reports::Run run = told({R"({"event": "case_begin", "case": "a/one", "worker": 0, "seed": 1})",
                                 R"({"event": "phase", "case": "a/one", "name": "backward"})",
                                 R"({"event": "metric", "case": "a/one", "name": "m", "value": 3})"})
                               .finish(false);
  const Case& one = run.suites.at(0).cases.at(0);
  EXPECT_EQ(one.status, Status::not_run);
  EXPECT_EQ(one.reason_code, "interrupted");
  EXPECT_EQ(one.last_phase, "backward");
  EXPECT_EQ(one.metrics.size(), 1u);
  EXPECT_DOUBLE_EQ(one.duration_s, 2.0);  // from its begin to the last event
  EXPECT_EQ(run.suites.at(0).cases.at(1).reason_code, "not_reached");
  EXPECT_FALSE(run.complete);
  EXPECT_DOUBLE_EQ(run.duration_s, 3.0);
  EXPECT_DOUBLE_EQ(run.harness_s, 1.0);
}

TEST(RunBuilder, RecordsTheInterruption) {
  const auto run = told({R"({"event": "run_end", "duration_s": 1, "case_s": 0, "interruption": 130})"}).finish(false);
  EXPECT_EQ(run.interruption, ExitCode::interrupted);
  EXPECT_THAT(refusal_of_events({R"({"event": "run_end", "duration_s": 1, "case_s": 0, "interruption": 0})"}),
              HasSubstr("'interruption' is 0"));
  EXPECT_THAT(refusal_of_events({R"({"event": "run_end", "duration_s": 1, "case_s": 0, "interruption": 99})"}),
              HasSubstr("is 99"));
}

TEST(RunBuilder, RefusesWhatCannotBe) {
  EXPECT_THAT(refusal_of_events({R"({"event": "case_begin", "case": "a/three", "seed": 1})"}),
              HasSubstr("'case' is \"a/three\""));
  EXPECT_THAT(refusal_of_events({R"({"event": "case_end", "case": "a/one", "status": "passed"})"}),
              HasSubstr("'status' is \"passed\""));
  EXPECT_THAT(refusal_of_events({R"({"event": "finding", "code": "T", "severity": "fatal", "message": "m"})"}),
              HasSubstr("allowed: info, warn"));
  EXPECT_THAT(refusal_of_events({R"({"event": "metric", "case": "a/one", "name": "m", "value": "fast"})"}),
              HasSubstr("'value' is \"fast\""));
  EXPECT_THAT(
      refusal_of_events({R"({"event": "check", "case": "a/one", "name": "c", "pass": true, "comparator": "<="})"}),
      HasSubstr("'measured' is missing"));
  EXPECT_THAT(refusal_of_events({R"({"event": "case_end", "case": "a/one", "status": "pass", "duration_s": -1})"}),
              HasSubstr("duration_s"));
  EXPECT_THAT(refusal_of_events({R"({"event": "run_end", "duration_s": 1, "case_s": 0})",
                                 R"({"event": "phase", "case": "a/one", "name": "x"})"}),
              HasSubstr("after run_end"));
}

TEST(RunBuilder, EmptyProseIsNoReasonToLoseAReport) {
  EXPECT_EQ(
      refusal_of_events({R"({"event": "phase", "case": "a/one", "name": ""})",
                         R"({"event": "metric", "case": "a/one", "name": "", "value": 1})",
                         R"({"event": "finding", "case": "a/one", "code": "T", "severity": "warn", "message": ""})"}),
      "was accepted");
}

TEST(RunBuilder, ARefusedEventLeavesTheModelAsItWas) {
  RunBuilder builder = told({});
  const auto refused = [&](Json event) {
    event["t"] = "2026-11-21T01:31:01.000Z";
    EXPECT_THROW(builder.apply(event), std::invalid_argument) << event;
  };
  refused({{"event", "case_end"}, {"case", "a/one"}, {"status", "pass"}, {"duration_s", "long"}});
  refused({{"event", "run_end"}, {"duration_s", 1}, {"case_s", -1}});
  refused({{"event", "run_end"}, {"duration_s", 1}, {"case_s", 0}, {"interruption", 99}});
  const reports::Run run = builder.finish(false);
  EXPECT_FALSE(run.complete);
  EXPECT_EQ(run.suites.at(0).cases.at(0).status, Status::not_run);
}

TEST(RunBuilder, ReadsWhetherTheSelectionIsPartial) {
  Json begin = Json::parse(sample::Journal().text());
  begin["provenance"] = {{"selection", {{"partial", true}}}};
  RunBuilder builder;
  builder.apply(begin);
  EXPECT_TRUE(builder.finish(false).partial);
  EXPECT_FALSE(told({}).finish(false).partial);
}

TEST(RunBuilder, IgnoresUnknownKindsAndFields) {
  EXPECT_EQ(refusal_of_events({R"({"event": "telemetry", "case": "b/unknown"})",
                               R"({"event": "phase", "case": "a/one", "name": "x", "more": 1})"}),
            "was accepted");
}

Json begin_with(const std::string& pointer, const Json& value) {
  Json event = Json::parse(sample::Journal().text());
  event[Json::json_pointer(pointer)] = value;
  return event;
}

TEST(RunBuilder, RefusesABadPlan) {
  const std::vector<std::pair<Json, std::string>> bad{
      {begin_with("/plan/suites/0/name", "../etc"), "letters, digits"},
      {begin_with("/plan/suites/0/cases/1/id", "a/one"), "'a/one' is planned twice"},
      {begin_with("/plan/suites/0/cases/0/level", "quick"), "smoke or standard"},
      {begin_with("/plan/suites/0/requires", Json::array({1})), "suite names"},
      {begin_with("/plan", nullptr), "'plan' is null"},
      {begin_with("/run/master_seed", -1), "'master_seed' is -1"},
      {begin_with("/run/id", ""), "'id' is \"\""},
  };
  for (const auto& [event, wanted] : bad) {
    RunBuilder builder;
    try {
      builder.apply(event);
      ADD_FAILURE() << "accepted: " << wanted;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr(wanted));
    }
  }
}

TEST(RunBuilder, NothingBeforeRunBeginAndOnlyOne) {
  const Json begin = Json::parse(sample::Journal().text());
  RunBuilder builder;
  EXPECT_THROW(builder.apply({{"event", "phase"}, {"t", "x"}, {"case", "a/one"}, {"name", "x"}}),
               std::invalid_argument);
  EXPECT_THROW((void)RunBuilder().finish(false), std::invalid_argument);
  builder.apply(begin);
  EXPECT_THROW(builder.apply(begin), std::invalid_argument);
  EXPECT_THROW(builder.apply(Json::array()), std::invalid_argument);
}

}  // namespace
}  // namespace reports
