#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <torch/version.h>

#include <fstream>
#include <future>

#include "nsa/config.hpp"
#include "suites/codes.hpp"
#include "suites/preflight/checks.hpp"
#include "suites/program.hpp"
#include "suites/tests/recording_context.hpp"

namespace {

using namespace suites;
namespace checks = preflight_checks;
using Codes = std::set<std::string>;
using tests::RecordingContext;

std::string code(std::string_view c) { return std::string(c); }

// A run's folder of its own, and a context that knows it.
class Preflight : public ::testing::Test {
 protected:
  Preflight() : settings(tests::default_settings(preflight_settings())), context(settings) {
    std::string pattern = (std::filesystem::temp_directory_path() / "preflight.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    context.folder = folder;
    context.provenance["config"]["resolved"] = harness::Json(nsa::flatten(subject().config(context)));
  }
  ~Preflight() override { std::filesystem::remove_all(folder); }

  [[nodiscard]] Subject subject() const { return Subject(seams); }
  [[nodiscard]] Codes all_codes() const {
    Codes found;
    for (const auto& f : context.findings) found.insert(f.code);
    return found;
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder / name) << text; }

  std::shared_ptr<Seams> seams = std::make_shared<Seams>();
  harness::Settings settings;
  RecordingContext context;
  std::filesystem::path folder;
};

// -- software

TEST_F(Preflight, TorchOfThisBuildIsTheOneThatIsLoaded) {
  EXPECT_EQ(checks::torch_version_found(), TORCH_VERSION);
  checks::torch_version(context, TORCH_VERSION, checks::torch_version_found());
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks, 1);
}

TEST_F(Preflight, AnotherTorchIsFound) {
  checks::torch_version(context, "2.11.0", "2.10.1");
  ASSERT_EQ(all_codes(), Codes{code(codes::kTorchVersion)});
  EXPECT_NE(context.findings[0].message.find("2.10.1"), std::string::npos);
}

TEST_F(Preflight, StaleBuildIsFound) {
  context.provenance["build"] = {{"build_id", "aaaa"}, {"source_hash", "bbbb"}};
  checks::build_id(context);
  EXPECT_EQ(all_codes(), Codes{code(codes::kBuildStale)});
}

TEST_F(Preflight, FreshBuildAndMissingSourcesAreSilent) {
  context.provenance["build"] = {{"build_id", "aaaa"}, {"source_hash", "aaaa"}};
  checks::build_id(context);
  EXPECT_EQ(context.checks, 1);
  context.provenance["build"] = {{"build_id", "aaaa"}, {"source_hash", nullptr}};
  checks::build_id(context);
  EXPECT_TRUE(context.facts.contains("build.compared"));
  EXPECT_TRUE(context.findings.empty());
  context.provenance["build"] = harness::Json::object();
  EXPECT_THROW(checks::build_id(context), std::runtime_error);
}

TEST_F(Preflight, UnknownAndRetiredFlagsAreTold) {
  checks::flags(context, {{"NSA_USE_FA", "1"}, {"NSA_FWE_DOC_BATCH", "64"}, {"NSA_USE_FA2", "1"}});
  ASSERT_EQ(context.findings.size(), 2U);
  for (const auto& f : context.findings) {
    if (f.code == codes::kUnknownFlag) {
      EXPECT_EQ(f.severity, reports::Severity::warn);
      EXPECT_NE(f.message.find("did you mean NSA_USE_FA2?"), std::string::npos) << f.message;
    } else {
      EXPECT_EQ(f.code, codes::kRetiredFlag);
      EXPECT_EQ(f.severity, reports::Severity::info);
    }
  }
}

// -- GPU

TEST_F(Preflight, BrokenCudaDoesNotLookLikeNoGpu) {
  checks::cuda_present(context, {.driver = 12040, .runtime = 13000, .devices = 0, .error = "driver too old"});
  EXPECT_EQ(context.grave_codes(), Codes{code(codes::kCudaUnusable)});
}

TEST_F(Preflight, NoGpuAndHiddenGpuAreFacts) {
  checks::cuda_present(context, {.driver = 0, .runtime = 13000, .devices = 0, .error = "insufficient driver"});
  checks::cuda_present(context, {.driver = 13000, .runtime = 13000, .error = "no device", .no_device = true});
  checks::cuda_present(context, {.driver = 13000, .runtime = 13000, .devices = 1, .error = ""});
  EXPECT_TRUE(context.findings.empty());
}

TEST_F(Preflight, DriverOfAnOlderMajorVersionIsFound) {
  checks::driver(context, {.driver = 13000, .runtime = 13010, .devices = 1, .error = ""});
  EXPECT_TRUE(context.findings.empty());
  checks::driver(context, {.driver = 12080, .runtime = 13000, .devices = 1, .error = ""});
  EXPECT_EQ(all_codes(), Codes{code(codes::kDriver)});
}

probes::GpuCensus census(std::vector<probes::ProcessOnGpu> processes, std::uint64_t used) {
  probes::GpuCensus c;
  c.processes = std::move(processes);
  c.memory = probes::GpuMemory{std::uint64_t{140} << 30, (std::uint64_t{140} << 30) - used, used};
  return c;
}

TEST_F(Preflight, ForeignProcessIsNamedWithPidAndBytes) {
  const auto c =
      census({{100, "nsa-validate", 1 << 20}, {777, "python", std::uint64_t{10} << 30}}, std::uint64_t{11} << 30);
  const auto parent = [](std::int64_t pid) { return std::optional<std::int64_t>(pid == 100 ? 99 : 1); };
  checks::foreign_processes(context, c, probes::find_foreign(c, 100, 99, parent), 1 << 20);
  ASSERT_EQ(all_codes(), Codes{code(codes::kForeignProcess)});
  EXPECT_NE(context.findings[0].message.find("pid 777 (python) with 10737418240 bytes"), std::string::npos);
}

TEST_F(Preflight, OwnProcessTreeIsNotForeign) {
  const auto c = census({{100, "w", 1}, {101, "w2", 1}, {102, "w3", 1}}, 1 << 20);
  // 101 is another worker of supervisor 99, 102 a child of 101.
  const auto parent = [](std::int64_t pid) {
    return std::optional<std::int64_t>(pid == 102 ? 101 : pid == 99 ? 1 : 99);
  };
  checks::foreign_processes(context, c, probes::find_foreign(c, 100, 99, parent), 1 << 20);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks, 1);
}

TEST_F(Preflight, InvisibleProcessesAreNoPass) {
  const auto c = census({{40312, "", std::nullopt}}, std::uint64_t{1} << 30);
  const auto foreign = probes::find_foreign(c, 100, 99, [](std::int64_t) { return std::nullopt; });
  EXPECT_FALSE(foreign.can_tell);
  checks::foreign_processes(context, c, foreign, 0);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.facts["gpu.foreign_processes"].get<std::string>().rfind("cannot tell", 0), 0U);
}

TEST_F(Preflight, MemoryThatNobodyVisibleHoldsIsFound) {
  const auto c = census({}, std::uint64_t{12} << 30);
  checks::foreign_processes(context, c, probes::find_foreign(c, 100, 99), std::int64_t{1} << 30);
  EXPECT_EQ(all_codes(), Codes{code(codes::kForeignProcess)});
}

TEST_F(Preflight, UnusableNvmlIsAFact) {
  probes::GpuCensus c;
  c.why_not = "libnvidia-ml.so.1: no such file";
  checks::foreign_processes(context, c, probes::find_foreign(c, 100, 99), 0);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_NE(context.facts["gpu.foreign_processes"].get<std::string>().find("libnvidia-ml"), std::string::npos);
}

// -- run folder

TEST_F(Preflight, HaltFileOfAnEarlierRunIsQuoted) {
  write(".HALT", "run: 20250828T101500Z-0ld0\nanomaly: nan_loss\nstep: 1\n");
  checks::halt_files(context);
  ASSERT_EQ(all_codes(), Codes{code(codes::kStaleHalt)});
  EXPECT_NE(context.findings[0].message.find("anomaly: nan_loss"), std::string::npos);
}

TEST_F(Preflight, EmptyHaltFileAndAnomalyTypeAreStale) {
  write("HALT", "");
  write(".anomaly_type", "nan_loss");
  checks::halt_files(context);
  EXPECT_EQ(context.findings.size(), 2U);
}

TEST_F(Preflight, HaltFileOfThisRunAndOtherFilesAreNot) {
  write(".HALT", "run: " + context.run_id() + "\n");
  write("events.jsonl", "{}");
  write("xHALT", "");
  checks::halt_files(context);
  EXPECT_TRUE(context.findings.empty());
}

// -- configuration

TEST_F(Preflight, PlannedConfigurationAgrees) {
  checks::configuration(subject(), context);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks, 1);
}

TEST_F(Preflight, DriftFromThePlanListsEveryKey) {
  seams->configuration.push_back([](nsa::Config& c) {
    c.train.gradient_checkpointing = !c.train.gradient_checkpointing;
    c.train.batch_size *= 2;
  });
  checks::configuration(subject(), context);
  ASSERT_EQ(all_codes(), Codes{code(codes::kConfigDrift)});
  const auto& rows = context.findings[0].evidence["differences"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["key"], "train.batch_size");
  EXPECT_EQ(rows[1]["key"], "train.gradient_checkpointing");
}

TEST_F(Preflight, DriftFromAnExpectedFile) {
  write("same.yaml", "nsa:\n  l_sel: 16\n");
  settings.set("preflight.expect", (folder / "same.yaml").string(), "test");
  checks::configuration(subject(), context);
  EXPECT_TRUE(context.findings.empty());
  write("other.yaml", "train:\n  accumulate_grad_batches: 7\n");
  settings.set("preflight.expect", (folder / "other.yaml").string(), "test");
  checks::configuration(subject(), context);
  ASSERT_EQ(all_codes(), Codes{code(codes::kConfigDrift)});
  EXPECT_NE(context.findings[0].message.find("train.accumulate_grad_batches is 1, expected 7"), std::string::npos)
      << context.findings[0].message;
}

TEST_F(Preflight, MissingPlanIsAnErrorNotAPass) {
  context.provenance = harness::Json::object();
  EXPECT_THROW(checks::configuration(subject(), context), std::runtime_error);
}

// -- first batch

constexpr std::chrono::milliseconds kLong{30000};

TEST_F(Preflight, FirstBatchOfAFile) {
  write("text", std::string(4096, 'a'));
  settings.set("data", (folder / "text").string(), "test");
  checks::first_batch_of_data(subject(), context);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_TRUE(context.metrics.contains("first_batch"));
}

TEST_F(Preflight, MissingAndShortDataAreFound) {
  settings.set("data", (folder / "nowhere").string(), "test");
  checks::first_batch_of_data(subject(), context);
  EXPECT_EQ(context.findings.size(), 1U);
  write("short", "abc");
  settings.set("data", (folder / "short").string(), "test");
  checks::first_batch_of_data(subject(), context);
  EXPECT_EQ(context.findings.size(), 2U);
  EXPECT_EQ(all_codes(), Codes{code(codes::kFirstBatch)});
}

TEST_F(Preflight, StalledStorageIsFoundAndDoesNotStall) {
  const auto release = std::make_shared<std::promise<void>>();
  checks::first_batch(
      context, "a stalled store",
      [released = release->get_future().share()] {
        released.wait();
        return at::zeros({1}, at::kLong);
      },
      std::chrono::milliseconds(50));
  release->set_value();
  ASSERT_EQ(all_codes(), Codes{code(codes::kFirstBatch)});
  EXPECT_NE(context.findings[0].message.find("a stalled store"), std::string::npos);
}

TEST_F(Preflight, EmptyBatchIsFound) {
  checks::first_batch(
      context, "nothing", [] { return at::zeros({0}, at::kLong); }, kLong);
  EXPECT_EQ(all_codes(), Codes{code(codes::kFirstBatch)});
}

// -- flash and the whole

TEST_F(Preflight, FlashRefusesTheCpuAndRoutingGoesOn) {
  checks::flash_refuses(subject(), context);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks, 2);
}

TEST_F(Preflight, RoutingThatDoesNotGoOnIsFound) {
  seams->ops.push_back([](nsa::Ops ops, const nsa::Call&) {
    ops.attend_window = [](const nsa::AttendWindowArgs&) -> nsa::Attended { throw nsa::Unsupported("no"); };
    return ops;
  });
  checks::flash_refuses(subject(), context);
  EXPECT_EQ(all_codes(), Codes{code(codes::kFlashUnavailable)});
}

TEST_F(Preflight, CleanCasesAreSilent) {
  context.provenance["build"] = {{"build_id", "a"}, {"source_hash", "a"}};
  write("text", std::string(4096, 'a'));
  settings.set("data", (folder / "text").string(), "test");
  for (const harness::Case& c : preflight(subject()).cases(settings)) {
    if (!c.needs_cuda) c.run(context);
  }
  EXPECT_TRUE(context.grave_codes().empty());
}

}  // namespace
