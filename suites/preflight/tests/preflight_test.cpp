#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <torch/version.h>

#include <fstream>
#include <future>

#include "nsa/call.hpp"
#include "nsa/config.hpp"
#include "suites/codes.hpp"
#include "suites/preflight/checks.hpp"
#include "suites/probes/op_bytes.hpp"
#include "suites/registry.hpp"
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
  Preflight() : settings(tests::default_settings(preflight)), context(settings) {
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

// -- keys

class Keys : public Preflight {
 protected:
  [[nodiscard]] nsa::Config load(const std::string& yaml, const std::vector<nsa::Override>& overrides) const {
    write("keys.yaml", yaml);
    return nsa::load_config(folder / "keys.yaml", overrides);
  }
};

TEST_F(Keys, OfTheProductReachTheirFields) {
  checks::configuration_keys(context, [&](const auto& yaml, const auto& overrides) { return load(yaml, overrides); });
  EXPECT_TRUE(context.findings.empty()) << context.findings.front().message;
  EXPECT_EQ(context.checks, 2);
}

TEST_F(Keys, OneThatIsBoundToAnotherFieldIsFound) {
  checks::configuration_keys(context, [&](const auto& yaml, const auto& overrides) {
    nsa::Config config = load(yaml, overrides);
    config.train.deterministic = std::exchange(config.train.gradient_checkpointing, false);
    return config;
  });
  ASSERT_EQ(all_codes(), Codes{code(codes::kConfigKey)});
  EXPECT_EQ(context.findings[0].evidence["said"], "train.gradient_checkpointing = true does not reach its field");
}

TEST_F(Keys, AnOverrideThatLosesToTheFileIsFound) {
  checks::configuration_keys(context, [&](const auto& yaml, const auto&) { return load(yaml, {}); });
  ASSERT_EQ(all_codes(), Codes{code(codes::kConfigKey)});
  EXPECT_EQ(context.findings[0].evidence["said"], "model.name = other of a file is not overridden from outside");
}

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
  checks::build_id(context, context.planned_provenance());
  EXPECT_EQ(all_codes(), Codes{code(codes::kBuildStale)});
}

TEST_F(Preflight, FreshBuildAndMissingSourcesAreSilent) {
  context.provenance["build"] = {{"build_id", "aaaa"}, {"source_hash", "aaaa"}};
  checks::build_id(context, context.planned_provenance());
  EXPECT_EQ(context.checks, 1);
  context.provenance["build"] = {{"build_id", "aaaa"}, {"source_hash", nullptr}};
  checks::build_id(context, context.planned_provenance());
  EXPECT_EQ(context.facts["build"]["compared"], false);
  EXPECT_TRUE(context.findings.empty());
  context.provenance["build"] = harness::Json::object();
  EXPECT_THROW(checks::build_id(context, context.planned_provenance()), std::runtime_error);
}

TEST_F(Preflight, AFlagThatWasSetAfterTheRunBeganIsFound) {
  context.provenance["flags"]["set"] = {{"NSA_USE_FA2", "1"}, {"NSA_USE_CUDA", "0"}};
  checks::flags(context, {{"NSA_USE_FA2", "1"}, {"NSA_USE_CUDA", "0"}});
  EXPECT_TRUE(context.findings.empty());
  checks::flags(context, {{"NSA_USE_FA2", "0"}, {"NSA_FORCE_PARITY", "1"}});
  ASSERT_EQ(all_codes(), Codes{code(codes::kUnexpectedFlags)});
  for (const char* text :
       {"NSA_USE_FA2 is 0 in the worker, and was 1", "NSA_FORCE_PARITY is 1", "NSA_USE_CUDA is unset"})
    EXPECT_NE(context.findings[0].message.find(text), std::string::npos) << context.findings[0].message;
}

TEST_F(Preflight, UnknownAndRetiredFlagsAreTold) {
  const nsa::Environment set = {{"NSA_USE_FA", "1"}, {"NSA_FWE_DOC_BATCH", "64"}, {"NSA_USE_FA2", "1"}};
  context.provenance["flags"]["set"] = set;
  checks::flags(context, set);
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

nsa::Call step_on(int major, int minor, nsa::Precision precision = nsa::Precision::bf16) {
  nsa::Call call = nsa::call_of({}, 4, 512, precision, at::kCPU, /*training=*/true);
  call.cuda = major > 0;
  call.cuda_major = major;
  call.cuda_minor = minor;
  return call;
}

TEST_F(Preflight, AFlagThatCannotBeObeyedHereIsFoundWithTheReason) {
  struct Asked {
    const char *name, *op, *why;
    nsa::Call step;
  };
  nsa::Call long_step = step_on(0, 0);
  long_step.S = 1 << 16;  // a gathered selection would hold more than its budget
  for (const auto& [name, op, why, step] :
       {Asked{"NSA_USE_FA2", "attend_window", "flash refused: device is cpu", step_on(0, 0)},
        {"NSA_USE_FA2_CMP", "attend_compressed", "precision is fp32", step_on(9, 0, nsa::Precision::fp32)},
        {"NSA_USE_CUDA", "attend_selected", "cuda refused: device is cpu", step_on(0, 0)},
        {"NSA_USE_SEL_PACK", "attend_selected", "gathering refused: it would hold", long_step}}) {
    RecordingContext own(settings);
    checks::flags_obeyed(own, nsa::resolve({{name, "1"}}), step);
    ASSERT_EQ(own.grave_codes(), Codes{code(codes::kFlagNotObeyed)}) << name;
    const auto& found = own.findings[0];
    EXPECT_EQ(found.evidence["flag"], std::string(name) + "=1");
    EXPECT_EQ(found.evidence["op"], op) << name;
    EXPECT_NE(found.message.find(why), std::string::npos) << found.message;
  }
}

TEST_F(Preflight, FlagsThatAreObeyedAndDefaultsAreSilent) {
  for (const nsa::Environment& set : std::vector<nsa::Environment>{{},
                                                                   {{"NSA_USE_FA2", "1"}},
                                                                   {{"NSA_USE_CUDA", "1"}, {"NSA_USE_SEL_PACK", "1"}},
                                                                   {{"NSA_USE_CUDA", "1"}, {"NSA_FORCE_SEL_MASK", "1"}},
                                                                   {{"NSA_USE_FA2", "1"}, {"NSA_FORCE_PARITY", "1"}}})
    checks::flags_obeyed(context, nsa::resolve(set), step_on(9, 0));
  checks::flags_obeyed(context, nsa::resolve({}), step_on(0, 0));
  checks::flags_obeyed(context, nsa::resolve({{"NSA_USE_SEL_PACK", "1"}}), step_on(0, 0));
  EXPECT_TRUE(context.findings.empty()) << context.findings[0].message;
  EXPECT_EQ(context.checks, 2 + 2 + 1);
}

// -- GPU

TEST_F(Preflight, AGpuThatTheBuildHoldsNoKernelsForIsFound) {
  for (const auto& [major, minor] : {std::pair{12, 0}, {10, 3}, {7, 5}}) {
    RecordingContext own(settings);
    checks::kernels(own, nsa::resolve({}), step_on(major, minor), "8.0 9.0a");
    EXPECT_EQ(own.grave_codes(), Codes{code(codes::kNoKernels)}) << major;
    EXPECT_NE(own.findings[0].message.find(std::to_string(major) + "." + std::to_string(minor)), std::string::npos);
  }
  checks::kernels(context, nsa::resolve({}), step_on(9, 0), "8.0 9.0a");
  checks::kernels(context, nsa::resolve({}), step_on(12, 0), "8.0 9.0a+PTX 12.0");
  EXPECT_EQ(context.checks, 2);
  checks::kernels(context, nsa::resolve({{"NSA_USE_CUDA", "0"}}), step_on(12, 0), "8.0 9.0a");
  EXPECT_EQ(context.checks, 2) << "the flags want none";
  EXPECT_TRUE(context.findings.empty());
}

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
  EXPECT_EQ(context.facts["gpu.processes"]["foreign"].get<std::string>().rfind("cannot tell", 0), 0U);
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
  EXPECT_NE(context.facts["gpu.processes"]["foreign"].get<std::string>().find("libnvidia-ml"), std::string::npos);
}

// -- run folder

TEST_F(Preflight, HaltFileOfAnEarlierRunIsQuoted) {
  write(".HALT", "run: 20250828T101500Z-0ld0\nanomaly: nan_loss\nstep: 1\n");
  checks::halt_files(context);
  ASSERT_EQ(all_codes(), Codes{code(codes::kStaleHalt)});
  EXPECT_NE(context.findings[0].message.find("anomaly: nan_loss"), std::string::npos);
}

TEST_F(Preflight, AnyHaltFileCountsAndOtherFilesDoNot) {
  for (const char* name : {"HALT", ".anomaly_type", "events.jsonl", "xHALT"}) write(name, "");
  checks::halt_files(context);
  EXPECT_TRUE(context.findings.empty());
  write(".HALT", "run: " + context.run_id() + "\n");
  checks::halt_files(context);
  EXPECT_EQ(all_codes(), Codes{code(codes::kStaleHalt)});
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
  std::filesystem::create_symlink("loop", folder / "loop");
  settings.set("data", (folder / "loop").string(), "test");
  checks::first_batch_of_data(subject(), context);
  EXPECT_EQ(context.findings.size(), 3U);
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
    ops.replace(&nsa::Ops::attend_window,
                [](const nsa::AttendWindowArgs&) -> nsa::Attended { throw nsa::Unsupported("no"); });
    return ops;
  });
  checks::flash_refuses(subject(), context);
  EXPECT_EQ(all_codes(), Codes{code(codes::kFlashUnavailable)});
}

// -- standard level

TEST_F(Preflight, AnotherLibraryIsFoundAndTheOnesHereAreRight) {
  checks::libraries(context, checks::library_versions());
  EXPECT_TRUE(context.findings.empty());
  EXPECT_GE(context.checks, 2);
  checks::libraries(context,
                    {{"CUDA runtime", "13.0", "12.8", true}, {"cuDNN", "9.1", "9.7", true}, {"x", "1", "", false}});
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0].code, codes::kTorchVersion);
  EXPECT_NE(context.findings[0].message.find("CUDA runtime 12.8 is loaded"), std::string::npos);
}

TEST_F(Preflight, VariablesAndThreadsComeFromTheProvenance) {
  context.provenance["environment"] = {{"CUDA_LAUNCH_BLOCKING", "1"}, {"OMP_NUM_THREADS", "4096"}};
  checks::variables(context);
  checks::threads(context);
  EXPECT_EQ(all_codes(), (Codes{code(codes::kHarmfulVariable), code(codes::kThreadSettings)}));
}

TEST_F(Preflight, PinsAreJudgedAndCasesExistOnlyForWhatIsExpected) {
  const auto names = [&] {
    std::set<std::string> found;
    for (const harness::Case& c : preflight(subject()).cases(settings)) found.insert(c.name);
    return found;
  };
  EXPECT_FALSE(names().contains("pins") || names().contains("fix") || names().contains("train_folder"));
  settings.set("preflight.expect_environment", "[NSA_FORCE_SEL_MASK=1]", "test");
  settings.set("preflight.expect_commit", "0123abcd", "test");
  settings.set("preflight.train_folder", folder.string(), "test");
  EXPECT_TRUE(names().contains("pins") && names().contains("fix") && names().contains("train_folder"));
  checks::pins(context);
  EXPECT_EQ(all_codes(), Codes{code(codes::kUnexpectedFlags)});
}

TEST_F(Preflight, AProgramWithoutTheFixIsFound) {
  settings.set("preflight.expect_commit", "0123abcd0123abcd", "test");
  context.provenance["build"] = {{"build_id", "a"}, {"source_hash", "a"}};
  context.provenance["source"] = {{"folder", folder.string()}};
  checks::fix(context, context.planned_provenance());
  EXPECT_EQ(all_codes(), Codes{code(codes::kFixMissing)});
}

TEST_F(Preflight, ATrainingFolderWithAHaltFileIsFound) {
  settings.set("preflight.train_folder", folder.string(), "test");
  checks::train_folder(subject(), context);
  EXPECT_TRUE(context.findings.empty());
  write(".HALT", "{\"run\": \"abc\", \"anomaly\": \"nan_loss\"}");
  checks::train_folder(subject(), context);
  ASSERT_EQ(all_codes(), Codes{code(codes::kStaleHalt)});
  EXPECT_NE(context.findings[0].message.find("belongs to run abc"), std::string::npos);
}

TEST_F(Preflight, ATrainingFolderThatNsaTrainWouldRefuseIsFound) {
  settings.set("preflight.train_folder", folder.string(), "test");
  write("run.json", R"({"schema": "nsa-train-run/1", "run_id": "abc", "starts": [{}]})");
  checks::train_folder(subject(), context);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.facts["train_folder.holds_run"], "abc");
  std::filesystem::remove(folder / "run.json");
  write("metrics.csv", "step,loss\n");  // of a run without its record
  checks::train_folder(subject(), context);
  ASSERT_EQ(all_codes(), Codes{code(codes::kRunFolder)});
  EXPECT_NE(context.findings[0].message.find("parts of a run and no run.json"), std::string::npos);
}

TEST_F(Preflight, AHostWithTooLittleMemoryIsFound) {
  checks::host(context);
  EXPECT_TRUE(context.grave_codes().empty());
  settings.set("preflight.host_memory_gib", "65536", "test");
  checks::host(context);
  EXPECT_EQ(all_codes(), Codes{code(codes::kHostResources)});
}

TEST_F(Preflight, AStepThatCannotFitIsFound) {
  checks::memory_estimate(subject(), context);
  EXPECT_TRUE(context.grave_codes().empty());
  seams->configuration.push_back([](nsa::Config& c) { c.train.batch_size = std::int64_t{1} << 30; });
  checks::memory_estimate(subject(), context);
  ASSERT_EQ(all_codes(), Codes{code(codes::kDoesNotFit)});
  EXPECT_NE(context.findings[0].message.find("fits: "), std::string::npos) << context.findings[0].message;
}

// What the lower count says is kept must really be kept: so much is alive at once in a training pass.
TEST_F(Preflight, TheLowerCountIsNoOverestimate) {
  const nsa::Config config = subject().config(context);
  const machine::PlannedStep step{config, {}, false};
  Instance instance = subject().model({.config = config.model, .flags = {}, .seed = 1});
  const at::Tensor tokens = at::zeros({2, 129}, at::kLong);
  const auto peak = static_cast<double>(probes::measure_bytes([&] { instance.model->loss(tokens).backward(); }).peak);
  EXPECT_LE(machine::lower_count(step, 128, 2).activations, peak);
  EXPECT_GE(machine::lower_count(step, 128, 2).activations, peak / 8) << "too low to say anything";
}

TEST_F(Preflight, AStoredLawIsNotUsedForARecomputedStep) {
  nsa::Config config = subject().config(context);
  config.train.gradient_checkpointing = true;
  EXPECT_FALSE(checks::stored_law({config, {}, false}, "cpu").has_value());
}

// configs/memory as it is: laws of an H200, which say nothing of another device.
TEST_F(Preflight, TheLawsOfAnH200AreUsedThereAndNowhereElse) {
  nsa::Config config;
  config.model.name = "m7c_125m";  // the defaults are its values
  const machine::PlannedStep step{config, {}, true};
  for (const char* device : {"cpu", "NVIDIA A100-SXM4-80GB"}) EXPECT_FALSE(checks::stored_law(step, device)) << device;
  EXPECT_FALSE(checks::stored_law({config, {}, false}, "cpu"));
  nsa::Config tiny = subject().config(context);
  EXPECT_FALSE(checks::stored_law({tiny, {}, true}, "NVIDIA H200"));

  machine::PlannedStep sdpa = step;
  sdpa.flags.use_cuda = false;
  const auto law = checks::stored_law(step, "NVIDIA H200"), of_sdpa = checks::stored_law(sdpa, "NVIDIA H200");
  ASSERT_TRUE(law && of_sdpa);
  EXPECT_EQ(law->longest_S, 2048);
  EXPECT_NEAR(law->bytes(2048, 1), 1.845e9, 0.01e9);     // measured there: 1,845,093,164
  EXPECT_NEAR(of_sdpa->bytes(2048, 1), 16.76e9, 0.1e9);  // and 16,756,104,236
  EXPECT_GE(law->bytes(2048, 1), machine::lower_count(step, 2048, 1).total);
  EXPECT_GE(of_sdpa->bytes(2048, 1), machine::lower_count(sdpa, 2048, 1).total);
}

TEST_F(Preflight, BeyondTheGatheringsBudgetTheMaskedLawHolds) {
  nsa::Config config;
  config.model.name = "m7c_125m";
  nsa::EffectiveFlags flags;
  flags.use_cuda = false;
  const machine::PlannedStep step{config, flags, true};
  flags.sel_mask = true;
  const auto own = checks::stored_law(step, "NVIDIA H200");
  const auto masked = checks::stored_law({config, flags, true}, "NVIDIA H200");
  ASSERT_TRUE(own && masked);
  EXPECT_GT(own->bytes(4096, 1), 2 * masked->bytes(4096, 1));
  EXPECT_EQ(own->bytes(4097, 1), masked->bytes(4097, 1));  // nsa::kGatherBudgetBytes at 4096 tokens a batch
  EXPECT_EQ(own->bytes(2049, 2), masked->bytes(2049, 2));
  EXPECT_GE(own->bytes(8192, 1), machine::lower_count(step, 8192, 1).total);
}

TEST_F(Preflight, CleanCasesAreSilent) {
  context.provenance["build"] = {{"build_id", "a"}, {"source_hash", "a"}};
  context.provenance["source"] = {{"folder", "/nowhere"}};
  write("text", std::string(4096, 'a'));
  settings.set("data", (folder / "text").string(), "test");
  for (const harness::Case& c : preflight(subject()).cases(settings)) {
    if (!c.needs_cuda) c.run(context);
  }
  EXPECT_TRUE(context.grave_codes().empty());
}

}  // namespace
