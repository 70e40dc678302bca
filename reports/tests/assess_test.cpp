#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "reports/model.hpp"
#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using sample::finding;
using sample::kSeverities;
using sample::kStatuses;
using sample::run_of;
using testing::Contains;
using testing::HasSubstr;

void expect_verdict(const Run& run, Verdict verdict, ExitCode code) {
  const Assessment a = assess(run);
  EXPECT_EQ(to_string(a.verdict), to_string(verdict));
  EXPECT_EQ(static_cast<int>(a.exit_code), static_cast<int>(code));
  EXPECT_FALSE(a.reasons.empty());
}

TEST(Assess, AFailingFindingOfTheInfrastructureIsItsExitCode) {
  reports::Run run = run_of({Status::pass});
  run.findings.push_back(finding(Severity::degrade, "infrastructure"));
  expect_verdict(run, Verdict::conditional, ExitCode::infrastructure);
  run.findings[0].severity = Severity::warn;
  expect_verdict(run, Verdict::ready, ExitCode::ready);
}

struct Combination {
  Status status;
  std::optional<Severity> severity;
  bool required;
  std::string category;
  bool with_pass;  // beside a case that passes
};

std::vector<Combination> combinations() {
  std::vector<Combination> all;
  for (int status = 0; status < kStatuses; ++status) {
    for (int severity = -1; severity < kSeverities; ++severity) {
      for (const bool required : {false, true}) {
        for (const std::string category : {"numerics", "performance"}) {
          for (const bool with_pass : {false, true}) {
            all.push_back({static_cast<Status>(status),
                           severity < 0 ? std::nullopt : std::optional(static_cast<Severity>(severity)), required,
                           category, with_pass});
          }
        }
      }
    }
  }
  return all;
}

Run run_like(const Combination& x) {
  reports::Run run = x.with_pass ? run_of({x.status, Status::pass}) : run_of({x.status});
  Case& c = run.suites[0].cases[0];
  c.required = x.required;
  if (x.severity) c.findings.push_back(finding(*x.severity, x.category));
  return run;
}

// The rules once more, as a predicate of their own.
bool may_be_ready(const Combination& x) {
  if (x.severity && *x.severity >= Severity::degrade) return false;
  switch (x.status) {
    case Status::pass:
      return true;
    case Status::skip:
    case Status::blocked:
    case Status::not_run:
    case Status::cancelled:
      return !x.required && x.with_pass;
    case Status::fail:
    case Status::error:
    case Status::crash:
    case Status::hang:
    case Status::inconclusive:
    case Status::infra_error:
      return false;
  }
  return false;
}

TEST(Assess, ReadyIsExitCodeZeroAndNothingElseOverAllCombinations) {
  for (const auto& x : combinations()) {
    for (const bool complete : {true, false}) {
      for (const bool interrupted : {false, true}) {
        reports::Run run = run_like(x);
        run.complete = complete;
        if (interrupted) run.interruption = ExitCode::interrupted;
        const Assessment a = assess(run);
        const std::string what = std::string(to_string(x.status)) +
                                 (x.severity ? " " + std::string(to_string(*x.severity)) : "") +
                                 (x.required ? " required" : "") + (x.with_pass ? " beside a pass" : "");
        EXPECT_EQ(a.verdict == Verdict::ready, a.exit_code == ExitCode::ready) << what;
        EXPECT_EQ(a.verdict == Verdict::ready, complete && !interrupted && may_be_ready(x)) << what;
        if (x.severity && *x.severity >= Severity::block) {
          EXPECT_EQ(a.verdict, Verdict::not_ready) << what;
        }
        EXPECT_FALSE(a.reasons.empty());
        EXPECT_FALSE(a.scope.empty());
      }
    }
  }
}

TEST(Assess, FailedTallyNeverComesWithAReadyRequiredCase) {
  for (const auto& x : combinations()) {
    const reports::Run run = run_like(x);
    const Totals totals = count(run.suites);
    int all = 0;
    for (const auto& [status, n] : totals.by_status) all += n;
    EXPECT_EQ(all, totals.planned);
    EXPECT_LE(totals.passed + totals.failed + totals.skipped, totals.planned);
    if (x.severity && failing(*x.severity)) {
      EXPECT_GE(totals.failed, 1);
    }
  }
}

TEST(Assess, Statuses) {
  expect_verdict(run_of({Status::pass}), Verdict::ready, ExitCode::ready);
  expect_verdict(run_of({Status::pass, Status::fail}), Verdict::not_ready, ExitCode::failed);  // without a finding
  expect_verdict(run_of({Status::pass, Status::error}), Verdict::not_ready, ExitCode::failed);
  expect_verdict(run_of({Status::pass, Status::crash}), Verdict::not_ready, ExitCode::crash);
  expect_verdict(run_of({Status::pass, Status::hang}), Verdict::not_ready, ExitCode::hang);
  expect_verdict(run_of({Status::hang, Status::crash}), Verdict::not_ready, ExitCode::crash);
  expect_verdict(run_of({Status::pass, Status::skip}), Verdict::conditional, ExitCode::failed);
  expect_verdict(run_of({Status::pass, Status::inconclusive}), Verdict::conditional, ExitCode::inconclusive);
  expect_verdict(run_of({Status::pass, Status::infra_error}), Verdict::conditional, ExitCode::infrastructure);
  expect_verdict(run_of({Status::pass, Status::not_run}), Verdict::conditional, ExitCode::failed);
}

TEST(Assess, Severities) {
  const auto with = [](Status status, Severity severity, const std::string& category) {
    reports::Run run = run_of({status, Status::pass});
    run.suites[0].cases[0].findings.push_back(finding(severity, category));
    return run;
  };
  expect_verdict(with(Status::pass, Severity::warn, "numerics"), Verdict::ready, ExitCode::ready);
  expect_verdict(with(Status::fail, Severity::degrade, "numerics"), Verdict::conditional, ExitCode::failed);
  expect_verdict(with(Status::fail, Severity::block, "numerics"), Verdict::not_ready, ExitCode::failed);
  expect_verdict(with(Status::fail, Severity::isolate, "environment"), Verdict::not_ready, ExitCode::failed);
  expect_verdict(with(Status::fail, Severity::degrade, "performance"), Verdict::conditional, ExitCode::performance);
  expect_verdict(with(Status::fail, Severity::block, "performance"), Verdict::not_ready, ExitCode::performance);
  expect_verdict(with(Status::crash, Severity::isolate, "crash"), Verdict::not_ready, ExitCode::crash);
  expect_verdict(with(Status::hang, Severity::block, "crash"), Verdict::not_ready, ExitCode::hang);
  expect_verdict(with(Status::fail, Severity::warn, "numerics"), Verdict::not_ready, ExitCode::failed);
  expect_verdict(with(Status::error, Severity::degrade, "performance"), Verdict::not_ready, ExitCode::failed);
}

TEST(Assess, SpeedAloneIsSevenAndCorrectnessWins) {
  reports::Run run = run_of({Status::fail, Status::fail});
  run.suites[0].cases[0].findings.push_back(finding(Severity::degrade, "performance"));
  run.suites[0].cases[1].findings.push_back(finding(Severity::degrade, "performance"));
  expect_verdict(run, Verdict::conditional, ExitCode::performance);
  run.suites[0].cases[1].findings.push_back(finding(Severity::degrade, "gradient"));
  expect_verdict(run, Verdict::conditional, ExitCode::failed);
}

TEST(Assess, FindingsOfTheRunCount) {
  reports::Run run = run_of({Status::pass});
  run.findings.push_back(finding(Severity::block, "harness"));
  expect_verdict(run, Verdict::not_ready, ExitCode::failed);
  run.findings = {finding(Severity::block, "crash")};
  expect_verdict(run, Verdict::not_ready, ExitCode::crash);
}

TEST(Assess, ReasonsNameTheWorstFirstAndEachTroubleOnce) {
  reports::Run run = run_of({Status::skip, Status::fail, Status::fail, Status::fail, Status::crash});
  for (int i = 1; i < 4; ++i) run.suites[0].cases[static_cast<std::size_t>(i)].findings = {finding(Severity::block)};
  EXPECT_THAT(assess(run).reasons,
              testing::ElementsAre("block finding NSA-T001 (A title): alpha/case1 and 2 more", "crashed: alpha/case4",
                                   "required, but without a result, skip: alpha/case0"));
}

TEST(Assess, NothingExecutedIsNeverReady) {
  expect_verdict(run_of({}), Verdict::conditional, ExitCode::nothing_executed);
  expect_verdict(run_of({Status::skip, Status::skip}), Verdict::conditional, ExitCode::nothing_executed);
  expect_verdict(run_of({Status::blocked}), Verdict::conditional, ExitCode::nothing_executed);
  reports::Run run = run_of({Status::skip});
  run.suites[0].cases[0].required = false;
  expect_verdict(run, Verdict::conditional, ExitCode::nothing_executed);
  run.suites.clear();
  expect_verdict(run, Verdict::conditional, ExitCode::nothing_executed);
}

TEST(Assess, IncompleteAndInterruptedRuns) {
  reports::Run run = run_of({Status::pass, Status::not_run});
  run.complete = false;
  expect_verdict(run, Verdict::conditional, ExitCode::inconclusive);
  run = run_of({Status::pass});
  run.complete = false;
  expect_verdict(run, Verdict::conditional, ExitCode::inconclusive);
  run = run_of({Status::fail});
  run.complete = false;
  expect_verdict(run, Verdict::not_ready, ExitCode::failed);
  run = run_of({Status::pass, Status::cancelled});
  run.interruption = ExitCode::terminated;
  expect_verdict(run, Verdict::conditional, ExitCode::terminated);
  run = run_of({Status::crash, Status::cancelled});
  run.interruption = ExitCode::interrupted;
  expect_verdict(run, Verdict::not_ready, ExitCode::interrupted);
  run = run_of({Status::pass, Status::not_run});
  run.interruption = ExitCode::infrastructure;
  expect_verdict(run, Verdict::conditional, ExitCode::infrastructure);
}

TEST(Assess, ASkipThatIsNotRequiredDoesNotLowerTheVerdictButIsNamed) {
  reports::Run run = run_of({Status::pass, Status::skip});
  run.suites[0].cases[1].required = false;
  run.suites[0].cases[1].reason_code = "no_cuda";
  expect_verdict(run, Verdict::ready, ExitCode::ready);
  EXPECT_THAT(assess(run).not_tested, Contains(HasSubstr("no_cuda")));
}

TEST(Assess, ALevelIsNotReadyOnTheEvidenceOfALowerOne) {
  reports::Run run = run_of({Status::pass, Status::pass});
  for (Case& c : run.suites[0].cases) c.level = "smoke";
  run.level = "standard";
  expect_verdict(run, Verdict::conditional, ExitCode::inconclusive);
  EXPECT_THAT(assess(run).reasons, Contains(HasSubstr("no case of the standard level itself")));
  run.suites[0].cases[0].level = "standard";
  expect_verdict(run, Verdict::ready, ExitCode::ready);
}

TEST(Outcome, ACaseWithAFailingFindingHasNotPassed) {
  for (const auto status : {Status::pass, Status::skip, Status::inconclusive, Status::cancelled, Status::not_run}) {
    reports::Run run = run_of({status});
    Case& c = run.suites[0].cases[0];
    EXPECT_EQ(outcome(c), status);
    c.findings.push_back(finding(Severity::warn));
    EXPECT_EQ(outcome(c), status);
    c.findings.push_back(finding(Severity::degrade));
    EXPECT_EQ(outcome(c), Status::fail);
    EXPECT_EQ(count(run.suites).failed, 1);
    EXPECT_EQ(outcome(run.suites[0]), Status::fail);
  }
}

TEST(Outcome, OfASuiteIsTheWorst) {
  const auto of = [](std::vector<Status> statuses) { return outcome(run_of(statuses).suites[0]); };
  EXPECT_EQ(of({Status::pass, Status::fail, Status::crash, Status::hang}), Status::crash);
  EXPECT_EQ(of({Status::fail, Status::error}), Status::error);
  EXPECT_EQ(of({Status::pass, Status::blocked}), Status::blocked);
  EXPECT_EQ(of({Status::pass, Status::skip}), Status::skip);  // a required skip
  EXPECT_EQ(of({Status::skip}), Status::skip);
  EXPECT_EQ(of({}), Status::skip);
  reports::Run run = run_of({Status::pass, Status::skip});
  run.suites[0].cases[1].required = false;
  EXPECT_EQ(outcome(run.suites[0]), Status::pass);
  for (int i = 0; i < kStatuses; ++i) {  // no status is forgotten in the order of gravity
    const auto status = static_cast<Status>(i);
    EXPECT_EQ(of({status, Status::pass}), status);
  }
}

TEST(Count, WhatSaysNothingAboutACaseIsNeitherPassedNorFailedNorSkipped) {
  const Totals totals = count(run_of({Status::pass, Status::fail, Status::cancelled, Status::cancelled, Status::blocked,
                                      Status::not_run, Status::inconclusive, Status::infra_error})
                                  .suites);
  EXPECT_EQ(totals.failed, 1);
  EXPECT_EQ(counts(totals),
            "1 passed, 1 failed, 0 skipped, 1 inconclusive, 1 blocked, 1 infra error, 1 not run, 2 cancelled");
  EXPECT_EQ(counts(count(run_of({Status::pass}).suites)), "1 passed, 0 failed, 0 skipped");
}

TEST(Count, EveryStatusHasItsRow) {
  std::vector<Status> all;
  for (int i = 0; i < kStatuses; ++i) all.push_back(static_cast<Status>(i));
  const Totals totals = count(run_of(all).suites);
  EXPECT_EQ(totals.planned, kStatuses);
  EXPECT_EQ(totals.executed, 6);
  EXPECT_EQ(totals.passed, 1);
  EXPECT_EQ(totals.skipped, 1);
  EXPECT_EQ(totals.failed, 4);
  ASSERT_EQ(totals.by_status.size(), static_cast<std::size_t>(kStatuses));
  for (const auto& [status, n] : totals.by_status) EXPECT_EQ(n, 1) << to_string(status);
  EXPECT_EQ(count({}).by_status.size(), static_cast<std::size_t>(kStatuses));
}

}  // namespace
}  // namespace reports
