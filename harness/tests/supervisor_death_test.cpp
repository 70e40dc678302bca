// How a run ends that is interrupted or killed, whose worker is, or that has no more memory or disk.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "harness/tests/support/fake_run.hpp"
#include "reports/journal.hpp"

namespace {

namespace fs = std::filesystem;
using harness::tests::code_of;
using harness::tests::FakeRun;
using harness::tests::read_text;
using reports::Status;
using testing::HasSubstr;

// Processes that are at work in `folder`; one that has ended and was not yet collected has no folder any more.
int processes_in(const fs::path& folder) {
  int count = 0;
  for (const auto& process : fs::directory_iterator("/proc")) {
    std::error_code gone;
    if (fs::read_symlink(process.path() / "cwd", gone) == folder) ++count;
  }
  return count;
}

// A control group (version 1 or 2) whose processes may have 256 MiB together. What is started in it
// leaves it by its end.
class MemoryGroup {
 public:
  static constexpr std::int64_t kBytes = 256 << 20;

  MemoryGroup() {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; path_.empty() && std::getline(groups, line);) {
      const bool second = line.starts_with("0::");
      const auto memory = line.find(":memory:");
      if (!second && memory == std::string::npos) continue;
      const fs::path home =
          fs::path(second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") / line.substr(second ? 4 : memory + 9);
      const fs::path made = home / fmt::format("harness-test-{}", getpid());
      std::error_code error;
      fs::create_directory(made, error);
      if (error) continue;
      if (write(made / (second ? "memory.max" : "memory.limit_in_bytes"), kBytes)) {
        write(made / (second ? "memory.swap.max" : "memory.memsw.limit_in_bytes"),
              second ? 0 : kBytes);  // if there is any
        path_ = made;
      } else {
        fs::remove(made, error);
      }
    }
  }
  ~MemoryGroup() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove(path_, ignored);
  }
  [[nodiscard]] const fs::path& path() const { return path_; }  // empty: none can be made here

 private:
  static bool write(const fs::path& file, std::int64_t number) {
    std::ofstream stream(file);
    stream << number << std::flush;
    return stream.good();
  }

  fs::path path_;
};

TEST(Supervisor, InterruptionKillsWorkersAndStillReports) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
    FakeRun fake;
    const pid_t pid = fake.start({"--suite", "stuck", "--out", "run"});
    for (int i = 0; i < 1000 && fake.events("case_begin").empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_EQ(kill(pid, signal), 0);
    EXPECT_EQ(fake.wait(pid), code);
    EXPECT_TRUE(fake.journal().complete);
    EXPECT_EQ(fake.find("stuck/sleeps").status, Status::cancelled);
    EXPECT_EQ(fake.find("stuck/after_all").status, Status::cancelled);
    EXPECT_TRUE(fs::exists(fake.run_folder() / "report.json"));
    EXPECT_THAT(fake.out(), testing::EndsWith("summary: 0 passed, 0 failed, 0 skipped, 8 cancelled\n"));
    EXPECT_THAT(fake.err(), HasSubstr("0 passed, 0 failed, 0 skipped, 8 cancelled\n"));
    EXPECT_EQ(reports::Json::parse(read_text(fake.run_folder() / "report.json"))["totals"]["failed"], 0);
    const pid_t worker = fake.events("worker_begin")[0]["pid"].get<pid_t>();
    EXPECT_NE(kill(worker, 0), 0) << "the worker is still there";
  }
}

TEST(Supervisor, KillNineAtAnyMomentLeavesAReport) {
  std::mt19937 random(7);
  int incomplete = 0;
  for (int i = 0; i < 20; ++i) {
    FakeRun fake;
    const pid_t pid = fake.start({"--suite", "bad,good", "--out", "run"});
    for (int wait = 0; wait < 5000 && fake.events("run_begin").empty(); ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 150000));
    kill(pid, SIGKILL);
    const int code = fake.wait(pid);
    if (code != 128 + SIGKILL) continue;  // it was faster
    const bool complete = fake.journal().complete;
    incomplete += complete ? 0 : 1;
    EXPECT_NE(fake({"report", "run"}), 0);
    ASSERT_TRUE(fs::exists(fake.run_folder() / "report.json")) << fake.err();
    EXPECT_FALSE(reports::Json::parse(read_text(fake.run_folder() / "report.json")).is_discarded());
    EXPECT_THAT(fake.out(), HasSubstr("summary: "));
    for (int wait = 0; wait < 500 && processes_in(fake.folder.path()) > 0; ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(processes_in(fake.folder.path()), 0)
        << "a worker, at work or waiting for its order, outlived its supervisor";
  }
  EXPECT_GT(incomplete, 0) << "no run was killed in the middle";
}

// A real one. Making a control group takes rights that a test seldom has.
TEST(Supervisor, AKillForLackOfMemoryIsToldAsSuch) {
  const MemoryGroup group;
  if (group.path().empty()) GTEST_SKIP() << "no control group for memory can be made here";
  FakeRun fake;
  fake.group = group.path();
  const int code = fake({"--suite", "hungry", "--out", "run"});
  if (code == 126) GTEST_SKIP() << "nobody may enter a control group here";
  const reports::Case killed = fake.find("hungry/eats");
  if (killed.status == Status::pass) GTEST_SKIP() << "the limit of a control group holds nobody here";
  EXPECT_EQ(code, 5) << fake.err();
  EXPECT_EQ(killed.status, Status::crash);
  EXPECT_EQ(killed.reason_code, "out_of_memory");
  EXPECT_EQ(code_of(killed), "NSA-X010");
  EXPECT_GE(killed.findings[0].evidence.at("out_of_memory_kills_in_control_group"), 1);
  EXPECT_EQ(killed.findings[0].evidence.at("memory_bound_bytes"), MemoryGroup::kBytes);
}

TEST(Supervisor, AKilledWorkerIsACrash) {
  FakeRun fake;
  const pid_t pid = fake.start({"--case", "stuck/sleeps", "--case", "stuck/after_all", "--out", "run"});
  for (int i = 0; i < 1000 && fake.events("case_begin").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  kill(fake.events("worker_begin")[0]["pid"].get<pid_t>(), SIGKILL);
  EXPECT_EQ(fake.wait(pid), 5);
  const reports::Case killed = fake.find("stuck/sleeps");
  EXPECT_EQ(killed.status, Status::crash);
  EXPECT_EQ(code_of(killed), "NSA-X011");
  EXPECT_THAT(killed.findings[0].message, HasSubstr("nothing speaks for a lack of memory"));
  EXPECT_EQ(fake.find("stuck/after_all").status, Status::pass);
}

TEST(Supervisor, AFullDiskEndsTheRunWithWhatIsThere) {
  FakeRun fake;
  const fs::path disk = fake.folder.path() / "disk";
  fs::create_directory(disk);
  if (geteuid() != 0 || mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1536k") != 0)
    GTEST_SKIP() << "needs root and permission to mount a small tmpfs";
  const int code = fake({"--suite", "bad,good", "--out", "disk/run"});  // the flood's log alone is larger
  const std::string err = fake.err();
  const reports::Run run = reports::read_journal(disk / "run" / "events.jsonl");
  const bool has_report = fs::exists(disk / "run" / "report.json");
  umount2(disk.c_str(), MNT_DETACH);
  EXPECT_EQ(code, 4) << err;
  EXPECT_THAT(err, HasSubstr("No space left on device"));
  EXPECT_TRUE(run.complete);
  EXPECT_TRUE(has_report);
}

}  // namespace
