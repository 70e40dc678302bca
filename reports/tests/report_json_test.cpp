#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "reports/schema.hpp"
#include "reports/tests/support/sample.hpp"
#include "reports/tests/support/schema_validator.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using sample::finding;
using sample::kSeverities;
using sample::kStatuses;
using sample::run_of;
using testing::IsEmpty;

// As a reader sees it: through the text.
Json emitted(const Json& report) { return Json::parse(dump(report, 2)); }

void expect_valid(const Run& run) {
  static const Json kSchema = Json::parse(report_schema());
  EXPECT_THAT(schema::violations(kSchema, emitted(to_json(run))), IsEmpty());
  for (const auto& suite : run.suites) {
    EXPECT_THAT(schema::violations(kSchema, emitted(suite_to_json(run, suite))), IsEmpty());
  }
}

TEST(ReportJson, TheSampleIsValidAndComplete) {
  const reports::Run run = sample::mixed();
  expect_valid(run);
  const Json report = emitted(to_json(run));
  EXPECT_EQ(report["verdict"], "NOT READY");
  EXPECT_EQ(report["run"]["exit_code"], 5);
  EXPECT_EQ(report["run"]["faults"], Json::array({"nan-at-block-boundary"}));
  EXPECT_EQ(report["run"]["master_seed"], 42);
  EXPECT_EQ(report["level"], "smoke");
  EXPECT_EQ(report["totals"]["planned"], 7);
  EXPECT_EQ(report["totals"]["crash"], 1);
  EXPECT_EQ(report["totals"]["passed"], 2);
  EXPECT_EQ(report["totals"]["failed"], 3);
  EXPECT_EQ(report["totals"]["blocked"], 1);
  EXPECT_EQ(report["totals"]["skipped"], 1);
  EXPECT_EQ(report["findings"].size(), 1u);
  const Json& c = report["suites"][1]["cases"][0];
  EXPECT_EQ(c["status"], "fail");
  EXPECT_EQ(c["metrics"][0]["value"], "NaN");
  EXPECT_EQ(c["findings"][0]["code"], "NSA-A001");
  EXPECT_EQ(c["findings"][0]["repro"], c["repro"]);
  EXPECT_EQ(report["suites"][0]["cases"][0]["seed"], 18446744073709551615u);
}

TEST(ReportJson, EverySuiteReportStandsAlone) {
  const reports::Run run = sample::mixed();
  const Json report = emitted(suite_to_json(run, run.suites[1]));
  EXPECT_EQ(report["schema"], "nsa-validate/suite-report");
  EXPECT_EQ(report["run"]["id"], run.id);
  EXPECT_EQ(report["verdict"], "NOT READY");
  EXPECT_EQ(report["name"], "s_sweep");
  EXPECT_EQ(report["outcome"], "crash");
  EXPECT_EQ(report["findings"].size(), 2u);
  EXPECT_EQ(report["findings"][1]["case"], run.suites[1].cases[2].id);
}

// Whatever a journal says, the report must be valid.
TEST(ReportJson, ValidForEveryCombinationOfStatusAndSeverity) {
  for (int status = 0; status < kStatuses; ++status) {
    for (int severity = -1; severity < kSeverities; ++severity) {
      for (const bool required : {true, false}) {
        reports::Run run = run_of({static_cast<Status>(status), Status::pass});
        Case& c = run.suites[0].cases[0];
        c.required = required;
        c.last_phase = "a phase";
        if (severity >= 0) c.findings.push_back(finding(static_cast<Severity>(severity)));
        SCOPED_TRACE(std::string(to_string(c.status)) + " " + std::to_string(severity));
        expect_valid(run);
        run.complete = false;
        expect_valid(run);
      }
    }
  }
  expect_valid(run_of({}));
}

TEST(ReportJson, AlwaysUtf8AndNeverASilentNull) {
  reports::Run run = run_of({Status::fail});
  Case& c = run.suites[0].cases[0];
  c.findings.push_back(finding(Severity::block));
  c.findings[0].message = "bytes \xff\xfe";
  c.findings[0].evidence = Json{{"worst", std::numeric_limits<double>::quiet_NaN()}};
  c.metrics.push_back({"m", std::numeric_limits<double>::infinity(), ""});
  expect_valid(run);
  const Json report = emitted(to_json(run));
  EXPECT_EQ(report["suites"][0]["cases"][0]["findings"][0]["evidence"]["worst"], "NaN");
  EXPECT_EQ(report["suites"][0]["cases"][0]["metrics"][0]["value"], "Infinity");
}

TEST(ReportJson, InterruptionIsRecorded) {
  reports::Run run = run_of({Status::pass, Status::cancelled});
  run.interruption = ExitCode::interrupted;
  expect_valid(run);
  EXPECT_EQ(to_json(run)["run"]["interruption"], 130);
  EXPECT_EQ(to_json(run)["run"]["exit_code"], 130);
}

}  // namespace
}  // namespace reports
