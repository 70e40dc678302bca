// Folders, the first batch, flash, the host; and the whole suite.
#include <chrono>
#include <future>

#include "suites/preflight/tests/preflight.hpp"

namespace suites::preflight_tests {
namespace {

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
}  // namespace suites::preflight_tests
