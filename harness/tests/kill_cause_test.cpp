// Who killed: told from made-up files of the kernel.
#include "harness/kill_cause.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/tests/support/fake_run.hpp"

namespace {

using harness::MemoryPlaces;
using testing::HasSubstr;
constexpr std::int64_t kGiB = 1 << 30;

class KillCause : public testing::Test {
 protected:
  KillCause() {
    write("meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
    write("vmstat", "nr_free_pages 1\noom_kill 3\n");
    write("group", "12:cpu:/\n4:cpuset,memory:/jobs/7\n0::/jobs/7\n");
  }
  void write(const std::string& name, const std::string& content) {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, content);
  }
  [[nodiscard]] harness::Kill find(double gib = 1) const {
    return watch_->look(4711, static_cast<std::int64_t>(gib * kGiB));
  }
  [[nodiscard]] MemoryPlaces places() const {
    const auto& at = folder_.path();
    return {at / "meminfo", at / "vmstat", at / "group", at / "groups", at / "kmsg"};
  }
  [[nodiscard]] std::filesystem::path folder_path(const std::string& name) const { return folder_.path() / name; }
  void started() { watch_.emplace(places()); }

 private:
  harness::tests::TempFolder folder_;
  std::optional<harness::KillWatch> watch_;
};

TEST_F(KillCause, WithoutASignOfItSomebodyElseDidIt) {
  started();
  EXPECT_FALSE(find().out_of_memory);
  EXPECT_THAT(find().why, HasSubstr("1.0 GiB at most, of 16.0 GiB"));
}

TEST_F(KillCause, AKillThatTheMachineCounted) {
  started();
  write("vmstat", "oom_kill 4\n");
  EXPECT_TRUE(find().out_of_memory);
  EXPECT_EQ(find().evidence.at("out_of_memory_kills_on_machine"), 1);
  EXPECT_TRUE(find().evidence.at("kernel_log").is_null());
}

TEST_F(KillCause, AKillThatTheControlGroupCounted) {
  for (const std::string file : {"groups/jobs/7/memory.events", "groups/memory/jobs/7/memory.oom_control"}) {
    write(file, "low 0\noom_kill 1\n");
    started();
    EXPECT_FALSE(find().out_of_memory) << file << ": an older one";
    write(file, "low 0\noom_kill 2\n");
    EXPECT_TRUE(find().out_of_memory) << file;
    EXPECT_THAT(find().why, HasSubstr("in this control group"));
    std::filesystem::remove(folder_path(file));
  }
}

// vmstat is the machine's in every container.
TEST_F(KillCause, AKillInAnotherGroupIsNotThisOne) {
  write("groups/jobs/7/memory.events", "oom_kill 1\n");
  started();
  write("vmstat", "oom_kill 4\n");
  EXPECT_FALSE(find().out_of_memory);
  EXPECT_EQ(find().evidence.at("out_of_memory_kills_on_machine"), 1);
  EXPECT_EQ(find().evidence.at("out_of_memory_kills_in_control_group"), 0);
}

TEST_F(KillCause, TheGroupOfAContainerIsWhatIsMounted) {
  write("groups/memory.events", "oom_kill 0\n");
  started();
  write("groups/memory.events", "oom_kill 1\n");
  EXPECT_TRUE(find().out_of_memory);
}

TEST_F(KillCause, ALineOfTheKernelsLogAboutThisProcess) {
  const std::string line = "3,1,1,-;Memory cgroup out of memory: Killed process 4711 (nsa-validate) total-vm:1kB\n";
  write("kmsg", line);
  started();
  EXPECT_FALSE(find().out_of_memory) << "of an earlier process of this number";
  write("kmsg", line + "3,1,1,-;Killed process 47111 (other)\n");
  EXPECT_FALSE(find().out_of_memory);
  write("kmsg", line);
  started();
  write("kmsg", line + line);
  const harness::Kill kill = find();
  EXPECT_TRUE(kill.out_of_memory);
  EXPECT_THAT(kill.why, HasSubstr("Killed process 4711 (nsa-validate)"));
}

TEST_F(KillCause, AlmostAllOfTheMemoryIsASign) {
  started();
  EXPECT_TRUE(find(13).out_of_memory);
  EXPECT_FALSE(find(12).out_of_memory);
  write("groups/jobs/7/memory.max", "max\n");
  EXPECT_EQ(harness::memory_bound(places()), 16 * kGiB);
  write("groups/memory/jobs/memory.limit_in_bytes", "2147483648\n");  // of the group above
  EXPECT_EQ(harness::memory_bound(places()), 2 * kGiB);
  EXPECT_TRUE(find(1.9).out_of_memory);
}

TEST_F(KillCause, FilesThatAreNotThereAccuseNobody) {
  for (const char* name : {"meminfo", "vmstat", "group"}) std::filesystem::remove(folder_path(name));
  started();
  EXPECT_EQ(harness::memory_bound(places()), 0);
  EXPECT_FALSE(find(100).out_of_memory);
}

}  // namespace
