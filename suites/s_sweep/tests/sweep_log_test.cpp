#include "suites/s_sweep/sweep_log.hpp"

#include <gtest/gtest.h>

#include "suites/codes.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::s_sweep_cases {
namespace {

const Design& design() {
  static const Design small({{"S", {"1", "2", "3"}}, {"scale", {"1", "30", "120"}}, {"dtype", {"fp32", "bf16"}}},
                            [](const Pair&) { return true; });
  return small;
}

tests::RecordingContext told(const std::function<bool(const Point&)>& fails) {
  static const harness::Settings settings = tests::default_settings();
  tests::RecordingContext context(settings);
  SweepLog log(context, design());
  for (const Point& point : design().points) {
    log.begin(point);
    log.add(point, fails(point)
                       ? std::optional(probes::Diagnosis{std::string(codes::kNonFiniteForward), "NaN", {{"row", 7}}})
                       : std::nullopt);
  }
  log.finish();
  return context;
}

TEST(SweepLog, TellsNothingWhenAllIsWell) {
  const auto context = told([](const Point&) { return false; });
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks, 1);
  EXPECT_EQ(context.metrics["points"]["value"], design().points.size());
  EXPECT_EQ(context.phases.size(), design().points.size());
}

TEST(SweepLog, TellsTheFirstFailuresAndWhatAllHaveInCommon) {
  const auto context = told([](const Point& p) { return p[1] == 2; });
  ASSERT_EQ(context.findings.size(), 4U);
  EXPECT_EQ(context.findings[0].code, codes::kNonFiniteForward);
  EXPECT_EQ(context.findings[0].evidence["scale"], "120");
  EXPECT_EQ(context.findings[0].evidence["row"], 7);
  const auto& last = context.findings.back();
  EXPECT_EQ(last.code, codes::kSweepPattern);
  EXPECT_NE(last.message.find("exactly those with scale=120"), std::string::npos) << last.message;
}

TEST(SweepLog, ClaimsNoPatternWhereThereIsNone) {
  const auto all = told([](const Point&) { return true; });
  EXPECT_EQ(all.findings.size(), 4U);  // three, and the sum
  EXPECT_NE(all.findings.back().message.find("all of them"), std::string::npos);
  const auto one = told([](const Point& p) { return p[0] == 0 && p[1] == 1; });
  EXPECT_NE(one.findings.back().message.find("one alone"), std::string::npos) << one.findings.back().message;
  const auto mixed = told([](const Point& p) { return p[1] == 2 || p[0] == 0; });
  EXPECT_NE(mixed.findings.back().message.find("no value and no two values"), std::string::npos);
}

TEST(SweepLog, AnEmptySweepIsNoPass) {
  static const harness::Settings settings = tests::default_settings();
  tests::RecordingContext context(settings);
  SweepLog log(context, design());
  log.finish();
  EXPECT_EQ(context.failed_checks, 1);
}

}  // namespace
}  // namespace suites::s_sweep_cases
