#include "suites/throughput/baseline.hpp"
#include "reports/writers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "harness/load_watch.hpp"
#include "suites/codes.hpp"
#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::throughput_cases {
namespace {

using harness::Json;
using probes::Timed;
using testing::HasSubstr;
using tests::RecordingContext;

// Times round `seconds` that scatter by a percent or two.
Timed timed(double seconds) {
  Timed result{{}, 0.01, {}};
  for (int i = 0; i < 16; ++i) result.seconds.push_back(seconds * (1 + 0.01 * ((i * 7) % 4)));
  return result;
}
Comparable comparable(double seconds, const std::string& device = "cpu") {
  return {{{"device", device}, {"model.name", "tiny"}, {"train.precision", "fp32"}}, {{"step", timed(seconds)}}};
}

Json report(const Comparable& of, Json faults = Json::array()) {
  return {{"schema_version", reports::kReportSchemaVersion},
          {"run", {{"id", "20260101T000000Z-base"}, {"faults", std::move(faults)}}},
          {"provenance", {{"build", {{"build_id", "old"}}}, {"flags", {{"effective", {{"nvtx", "0"}}}}}}},
          {"suites",
           {{{"name", "throughput"},
             {"cases",
              {{{"name", "rate"}, {"facts", {{"comparable", of.to_json()}}}},
               {{"name", "layers"}, {"facts", Json::object()}}}}}}}};
}

class Baselines : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder); }
  void write(const std::string& text) const { std::ofstream(folder / "report.json") << text; }
  void write(const Json& json) const { write(json.dump()); }
  // `again`: what a second measurement gives.
  RecordingContext compare(const Comparable& mine, double again) {
    settings.set("throughput.baseline", folder.string(), "test");
    RecordingContext context(settings);
    context.provenance = {{"build", {{"build_id", "new"}}}, {"flags", {{"effective", {{"nvtx", "1"}}}}}};
    context.machine_load = load;
    compare_with_baseline(context, "rate", mine, [&](const std::string&) {
      ++remeasured;
      return timed(again);
    });
    return context;
  }
  static std::string only_code(const RecordingContext& context) {
    return context.findings.size() == 1 ? context.findings[0].code : "";
  }
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) /
      (std::string("throughput_baseline.") + testing::UnitTest::GetInstance()->current_test_info()->name());
  harness::Settings settings = tests::default_settings(throughput);
  int remeasured = 0;
  base::Load load;
};

base::Load busy() {
  base::Load load;
  load.known = true;
  load.cores = 2;
  load.own_cores = 0.3;
  load.others_cores = 1.7;
  return load;
}

TEST_F(Baselines, TheSameTimesAreTheSameAndAreNotMeasuredAgain) {
  write(report(comparable(0.1)));
  const RecordingContext context = compare(comparable(0.1), 0.1);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks, 1);
  EXPECT_EQ(remeasured, 0);
  EXPECT_EQ(context.facts["baseline"]["rows"][0]["decision"], "same");
  EXPECT_EQ(context.facts["baseline"]["rows"][0]["word"], "SAME");
  const Json& differences = context.facts["baseline"]["other_differences"];
  EXPECT_EQ(differences["/build/build_id"]["baseline"], "old");
  EXPECT_TRUE(differences.contains("/flags/effective/nvtx"));
}

TEST_F(Baselines, SlowerIsAFindingOnlyWhenTheSecondMeasurementAgrees) {
  write(report(comparable(0.1)));
  const RecordingContext slower = compare(comparable(0.12), 0.12);
  EXPECT_EQ(only_code(slower), codes::kSlower);
  EXPECT_EQ(slower.findings[0].severity, reports::Severity::degrade);
  EXPECT_THAT(slower.findings[0].message, HasSubstr("SLOWER"));
  EXPECT_EQ(remeasured, 1);
  const RecordingContext once = compare(comparable(0.12), 0.1);
  EXPECT_EQ(only_code(once), codes::kCannotTell);
  EXPECT_EQ(once.facts["baseline"]["rows"][0]["decision"], "ambiguous");
}

TEST_F(Baselines, FasterIsTold) {
  write(report(comparable(0.1)));
  const RecordingContext context = compare(comparable(0.08), 0.08);
  EXPECT_EQ(only_code(context), codes::kFaster);
  EXPECT_TRUE(context.grave_codes().empty());
}

TEST_F(Baselines, AnotherDeviceModelOrPrecisionIsRefused) {
  write(report(comparable(0.1, "NVIDIA A100")));
  const RecordingContext device = compare(comparable(0.2, "NVIDIA H200"), 0.2);
  EXPECT_EQ(only_code(device), codes::kBaselineUnusable);
  EXPECT_THAT(device.findings[0].message, HasSubstr("device is \"NVIDIA A100\" there and \"NVIDIA H200\" here"));
  EXPECT_EQ(device.facts["baseline"]["decision"], "unusable");
  for (const char* key : {"model.name", "train.precision"}) {
    Comparable other = comparable(0.1);
    other.identity[key] = "other";
    write(report(comparable(0.1)));
    EXPECT_EQ(only_code(compare(other, 0.1)), codes::kBaselineUnusable) << key;
  }
  Comparable less = comparable(0.1);
  less.identity.erase("train.precision");
  EXPECT_EQ(only_code(compare(less, 0.1)), codes::kBaselineUnusable) << "a missing key is a difference";
}

TEST_F(Baselines, AnInjectedRunAndOneWithoutTimesAreRefused) {
  write(report(comparable(0.1), {"kv-expand-slow"}));
  EXPECT_THAT(compare(comparable(0.1), 0.1).findings[0].message, HasSubstr("kv-expand-slow"));
  Json empty = report(comparable(0.1));
  empty["suites"][0]["cases"].erase(0);
  write(empty);
  EXPECT_EQ(only_code(compare(comparable(0.1), 0.1)), codes::kBaselineUnusable);
  Comparable renamed = comparable(0.1);
  renamed.timed = {{"another measurement", timed(0.1)}};
  write(report(renamed));
  EXPECT_EQ(only_code(compare(comparable(0.1), 0.1)), codes::kBaselineUnusable) << "nothing was compared";
}

TEST_F(Baselines, ABaselineThatWasMeasuredUnderLoadIsRefused) {
  Json disturbed = report(comparable(0.1));
  Json& facts = disturbed["suites"][0]["cases"][0]["facts"];
  facts["load"] = harness::to_json(busy());
  write(disturbed);
  const RecordingContext context = compare(comparable(0.2), 0.2);
  EXPECT_EQ(only_code(context), codes::kBaselineUnusable);
  EXPECT_THAT(context.findings[0].message, HasSubstr("on a busy machine: other processes used 1.7 of 2 cores"));
  for (const Json& calm : {Json{{"known", true}, {"busy", false}}, Json{{"known", false}}}) {
    facts["load"] = calm;
    write(disturbed);
    EXPECT_EQ(only_code(compare(comparable(0.2), 0.2)), codes::kSlower) << calm;
  }
}

TEST_F(Baselines, UnderLoadNothingIsSlowerOrFaster) {
  write(report(comparable(0.1)));
  load = busy();
  for (const double seconds : {0.05, 0.1, 0.2}) {
    const RecordingContext context = compare(comparable(seconds), seconds);
    EXPECT_EQ(only_code(context), codes::kCannotTell) << seconds;
    EXPECT_THAT(context.findings[0].message, HasSubstr("this run's times were taken on a busy machine"));
    EXPECT_EQ(context.facts["baseline"]["rows"][0]["decision"], "unusable");
    EXPECT_TRUE(context.grave_codes().empty());
  }
  EXPECT_EQ(remeasured, 0);
}

TEST_F(Baselines, WhatIsNoReportIsRefusedWithItsPath) {
  for (const char* text :
       {"", "{", "{}", "[1,2]", R"({"schema_version":"1.0.0","run":{"id":"x"},"provenance":{},"suites":[{"name":3}]})",
        R"({"schema_version":"9.0.0","run":{"id":"x"},"provenance":{},"suites":[]})"}) {
    write(std::string(text));
    EXPECT_THROW((void)read_baseline(folder), std::runtime_error) << text;
    const RecordingContext context = compare(comparable(0.1), 0.1);
    EXPECT_EQ(only_code(context), codes::kBaselineUnusable) << text;
    EXPECT_THAT(context.findings[0].message, HasSubstr("report.json"));
  }
  EXPECT_THROW((void)read_baseline(folder / "nowhere"), std::runtime_error);
  settings.set("throughput.baseline", (folder / "nowhere").string(), "test");
  EXPECT_THROW((void)throughput(Subject(std::make_shared<Seams>())).cases(settings), harness::UsageError)
      << "known before anything runs";
}

TEST_F(Baselines, NoBaselineNoComparison) {
  RecordingContext context(settings);
  compare_with_baseline(context, "rate", comparable(0.1), [](const std::string&) { return Timed{}; });
  EXPECT_EQ(context.checks, 0);
  EXPECT_FALSE(context.facts.contains("baseline"));
}

}  // namespace
}  // namespace suites::throughput_cases
