// The cases of the standard level on a small healthy product, and on products with the defects that they must find.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include "reports/writers.hpp"
#include "suites/codes.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"
#include "suites/throughput/cases.hpp"

namespace suites {
namespace {

using tests::RecordingContext;
using Set = std::vector<std::pair<std::string, std::string>>;

// One layer and short sequences: what is tested here are the checks.
std::shared_ptr<Seams> small() {
  auto seams = std::make_shared<Seams>();
  seams->configuration.push_back([](nsa::Config& config) {
    config.model.n_layers = 1;
    config.train.seq_len = 64;
    config.train.batch_size = 2;
  });
  return seams;
}
std::shared_ptr<Seams> with_window(std::function<nsa::Attended(const nsa::Ops&, const nsa::AttendWindowArgs&)> window) {
  auto seams = small();
  seams->ops.push_back([window](nsa::Ops ops, const nsa::Call&) {
    const auto inner = std::make_shared<nsa::Ops>(ops);
    ops.replace(&nsa::Ops::attend_window,
                [window, inner](const nsa::AttendWindowArgs& args) { return window(*inner, args); });
    return ops;
  });
  return seams;
}

// A folder of this test's own: tests run at the same time.
std::filesystem::path folder() {
  std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
  std::replace(name.begin(), name.end(), '/', '.');
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / ("throughput_standard." + name);
  std::filesystem::create_directories(path);
  return path;
}

const harness::Settings& settings_of_a_run(const Set& set) {
  static std::vector<std::unique_ptr<harness::Settings>> kept;  // a context refers to its settings
  kept.push_back(std::make_unique<harness::Settings>(tests::default_settings(throughput)));
  kept.back()->set("throughput.repeats", "5", "test");
  kept.back()->set("throughput.floor_tok_s", "0", "test");  // no time decides, however busy the machine is
  kept.back()->set("throughput.ladder_floor_tok_s", "0", "test");
  kept.back()->set("throughput.lengths", "[32, 64, 128, 256]", "test");
  for (const auto& [key, value] : set) kept.back()->set(key, value, "test");
  return *kept.back();
}

RecordingContext run(const std::string& name, const std::shared_ptr<Seams>& seams, const Set& set = {}) {
  const harness::Settings& settings = settings_of_a_run(set);
  const harness::Suite suite = throughput(Subject(seams));
  for (const harness::Case& c : suite.cases(settings))
    EXPECT_TRUE(c.name != name || c.level == harness::Level::standard);
  return tests::run_case(suite, name, settings, folder());
}

using nsa::AttendWindowArgs;
using ByClock = void (*)(const Subject&, harness::Context&, const throughput_cases::Clock&);

// A case by a clock that stands still but for what `window` turns it on by, in every pass of every layer.
RecordingContext in_made_up_time(ByClock measure, const std::function<double(const AttendWindowArgs&)>& window,
                                 const Set& set = {}, std::shared_ptr<Seams> seams = small()) {
  const auto now = std::make_shared<double>(0);
  seams->ops.push_back([now, window](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [now, window, inner = ops.attend_window](const AttendWindowArgs& args) {
      *now += window(args);
      return inner(args);
    });
    return ops;
  });
  RecordingContext context(settings_of_a_run(set), "throughput/by_clock");
  context.folder = folder();
  measure(Subject(seams), context, [now] { return *now; });
  return context;
}

RecordingContext rate_in_made_up_time(const std::function<double(int call)>& window, const Set& set = {},
                                      std::shared_ptr<Seams> seams = small()) {
  const auto calls = std::make_shared<int>(0);
  return in_made_up_time(
      throughput_cases::rate_by_clock, [=](const AttendWindowArgs&) { return window(++*calls); }, set, seams);
}
// Twenty milliseconds a pass, scattered by a few percent.
double steady(int call) { return 0.020 * (1 + 0.01 * ((call * 7) % 5)); }

using tests::found;

// With what the case told besides.
std::string listed_with_facts(const RecordingContext& context) {
  return tests::listed(context) + context.facts.dump(1);
}

class Healthy : public testing::TestWithParam<std::string> {};
TEST_P(Healthy, NothingGrave) {
  const RecordingContext context = run(GetParam(), small());
  EXPECT_TRUE(context.grave_codes().empty()) << listed_with_facts(context);
  EXPECT_FALSE(context.facts.empty());
}
INSTANTIATE_TEST_SUITE_P(Standard, Healthy,
                         testing::Values("rate", "stage_shares", "attention_alone", "host_and_device", "step_bytes",
                                         "memory_law", "packing_cost", "layers", "shapes", "data_loading"),
                         [](const auto& param) { return param.param; });

TEST(ThroughputStandard, ARateHasItsIntervalNoiseFloorAndGate) {
  const RecordingContext context = run("rate", small(), {{"throughput.floor_tok_s", "1e12"}});
  EXPECT_TRUE(found(context, codes::kFarBelowGate)) << listed_with_facts(context);
  EXPECT_LE(context.metrics["training_step_low"]["value"], context.metrics["training_step"]["value"]);
  EXPECT_GE(context.metrics["aa_noise_floor"]["value"].get<double>(), 0);
  EXPECT_EQ(context.facts["gate"]["origin"], "test");
  EXPECT_GE(context.facts["comparable"]["timed"]["step"]["seconds"].size(), 8U);
}

// F12, F29: each step takes a little longer than the one before.
TEST(ThroughputStandard, AStepThatTakesLongerAndLongerIsFound) {
  const RecordingContext context = rate_in_made_up_time([](int call) { return steady(call) + 0.002 * call; });
  EXPECT_TRUE(found(context, codes::kStepTimeGrowth)) << listed_with_facts(context);
}
TEST(ThroughputStandard, AStepThatTakesAsLongAsBeforeIsNotAccused) {
  const RecordingContext context = rate_in_made_up_time(steady);
  EXPECT_TRUE(context.findings.empty()) << listed_with_facts(context);
  EXPECT_NEAR(context.metrics["training_step"]["value"].get<double>(), 2 * 64 / 0.0204, 100);
}

// F13: one value read back for every row.
TEST(ThroughputStandard, AHostSynchronisationForEveryRowIsFound) {
  const RecordingContext context =
      run("host_and_device", with_window([](const nsa::Ops& inner, const nsa::AttendWindowArgs& args) {
            for (std::int64_t t = 0; t < args.k.size(1); ++t) (void)args.k.select(1, t).sum().item<float>();
            return inner.attend_window(args);
          }));
  EXPECT_TRUE(found(context, codes::kHostSyncs)) << listed_with_facts(context);
  EXPECT_TRUE(found(context, codes::kHostLoop)) << listed_with_facts(context);
}

// F14: a loop over rows that reads nothing back.
TEST(ThroughputStandard, ALoopOverRowsIsFoundWithoutAnySynchronisation) {
  const RecordingContext context =
      run("host_and_device", with_window([](const nsa::Ops& inner, const nsa::AttendWindowArgs& args) {
            for (std::int64_t t = 0; t < args.k.size(1); ++t) (void)args.k.select(1, t).sort(-1);
            return inner.attend_window(args);
          }));
  EXPECT_FALSE(found(context, codes::kHostSyncs)) << listed_with_facts(context);
  EXPECT_TRUE(found(context, codes::kHostLoop)) << listed_with_facts(context);
}

// F16: scores of [S,S] in fp32 for every head, kept for the backward pass.
nsa::Attended with_dense_scores(const nsa::Ops& inner, const nsa::AttendWindowArgs& args) {
  nsa::Attended out = inner.attend_window(args);
  const at::Tensor q = args.q.transpose(1, 2).to(at::kFloat);
  const at::Tensor k = args.k.repeat_interleave(args.q.size(2) / args.k.size(2), 2).transpose(1, 2).to(at::kFloat);
  const at::Tensor scores = at::softmax(q.matmul(k.transpose(2, 3)), -1);  // [B,Hq,S,S]
  out.o = out.o + 0 * scores.sum(-1).transpose(1, 2).unsqueeze(3);
  return out;
}
TEST(ThroughputStandard, AMaskOfAllPairsForEveryHeadIsFound) {
  const RecordingContext context = run("memory_law", with_window(with_dense_scores));
  EXPECT_TRUE(found(context, codes::kMemoryLaw)) << listed_with_facts(context);
}

TEST(ThroughputStandard, TheFittedLawsAreWrittenAsConfigurationHoldsThem) {
  const RecordingContext context = run("memory_law", small());
  ASSERT_EQ(context.artifacts.size(), 1U);
  EXPECT_TRUE(std::filesystem::exists(context.folder / context.artifacts[0]));
  EXPECT_THAT(context.facts["yaml"].get<std::string>(), testing::HasSubstr("backend: sdpa_masked"));
  for (const char* backend : {"sdpa", "sdpa_masked", "sdpa_recompute", "reference"}) {
    EXPECT_GT(context.facts["laws"][backend]["r2"].get<double>(), 0.99) << backend;
  }
}

// F09: the chosen blocks are gathered once for every query head.
TEST(ThroughputStandard, CopiesForEveryHeadAreTooManyBytes) {
  auto seams = small();
  seams->configuration.push_back([](nsa::Config& config) { config.model.n_heads = 4 * config.model.n_kv_groups; });
  seams->ops.push_back([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](nsa::AttendSelectedArgs args) {
      const std::int64_t h = args.q.size(2) / args.k.size(2);
      args.k = args.k.repeat_interleave(h, 2);
      args.v = args.v.repeat_interleave(h, 2);
      args.blocks = args.blocks.repeat_interleave(h, 2);
      return inner(args);
    });
    return ops;
  });
  const RecordingContext context = run("step_bytes", seams);
  EXPECT_TRUE(found(context, codes::kStepBytes)) << listed_with_facts(context);
}

// The bound has room, and would have none for twice the product's bytes.
TEST(ThroughputStandard, TheBoundOnBytesLeavesRoom) {
  const RecordingContext context = run("step_bytes", small());
  const double ratio = context.metrics["allocated_to_counted"]["value"].get<double>();
  EXPECT_LE(ratio, 0.9 * 2.6) << listed_with_facts(context);
  EXPECT_GE(ratio, 0.5 * 2.6) << listed_with_facts(context);
}

TEST(ThroughputStandard, TimeThatGrowsWithTheCubeIsFound) {
  const auto power = [](double exponent) {
    return in_made_up_time(throughput_cases::shapes_by_clock,
                           [=](const AttendWindowArgs& args) {
                             return 0.01 * std::pow(static_cast<double>(args.q.size(1)) / 64, exponent);
                           },
                           {{"throughput.lengths", "[64, 128, 256]"}});
  };
  EXPECT_FALSE(found(power(1.9), codes::kTimeLaw));
  const RecordingContext context = power(3);
  EXPECT_TRUE(found(context, codes::kTimeLaw)) << listed_with_facts(context);
}

TEST(ThroughputStandard, AShapeBelowItsFloorIsSlow) {
  const RecordingContext context = run("shapes", small(), {{"throughput.ladder_floor_tok_s", "1e12"}});
  EXPECT_TRUE(found(context, codes::kShapeSlow));
  EXPECT_EQ(context.facts["shapes"].size(), 5U) << "four lengths, and the seeds' batch of 8";
  EXPECT_EQ(context.facts["shapes"][0]["word"], "SLOW");
  EXPECT_THAT(listed_with_facts(context), testing::HasSubstr("SLOW: S=128 B=8 accumulation=1 moves"));
}

TEST(ThroughputStandard, TheLadderIsThatOfTheSeeds) {
  const harness::Settings settings = tests::default_settings(throughput);
  EXPECT_EQ(settings.integers("throughput.lengths"), (std::vector<std::int64_t>{128, 256, 512, 1024, 2048}));
}

TEST(ThroughputStandard, TimesPerStageHoldTheWholePass) {
  const RecordingContext context = run("stage_shares", small());
  EXPECT_NEAR(context.metrics["covered_by_stages"]["value"].get<double>(), 100, 1e-6);
  std::set<std::string> stages;
  for (const harness::Json& row : context.facts["stages"]) stages.insert(row["stage"].get<std::string>());
  for (const char* stage : {"attend_compressed", "select", "attend_selected", "attend_window", "combine", "mlp"})
    EXPECT_TRUE(stages.contains(stage)) << stage;
}

// The comparison end to end: this run against its own report, and against one that was a third faster.
TEST(ThroughputStandard, ARunIsComparedWithAnEarlierReport) {
  const RecordingContext first = rate_in_made_up_time(steady);
  const auto report_of = [&](double scale) {
    harness::Json left = first.facts["comparable"];
    for (harness::Json& s : left["timed"]["step"]["seconds"]) s = s.get<double>() * scale;
    const harness::Json report = {
        {"schema_version", reports::kReportSchemaVersion},
        {"run", {{"id", "earlier"}, {"faults", harness::Json::array()}}},
        {"provenance", harness::Json::object()},
        {"suites", {{{"name", "throughput"}, {"cases", {{{"name", "rate"}, {"facts", {{"comparable", left}}}}}}}}}};
    const std::filesystem::path file = folder() / "earlier.json";
    std::ofstream(file) << report.dump();
    return file.string();
  };
  const RecordingContext same = rate_in_made_up_time(steady, {{"throughput.baseline", report_of(1)}});
  EXPECT_TRUE(same.findings.empty()) << listed(same);
  EXPECT_EQ(same.facts["baseline"]["rows"][0]["word"], "SAME") << listed(same);
  const RecordingContext slower = rate_in_made_up_time(steady, {{"throughput.baseline", report_of(0.7)}});
  EXPECT_TRUE(found(slower, codes::kSlower)) << listed(slower);
  auto deeper = small();
  deeper->configuration.push_back([](nsa::Config& config) { config.model.n_layers = 2; });
  const RecordingContext other = rate_in_made_up_time(steady, {{"throughput.baseline", report_of(1)}}, deeper);
  EXPECT_TRUE(found(other, codes::kBaselineUnusable)) << listed(other);
}

}  // namespace
}  // namespace suites
