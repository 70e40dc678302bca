#include "suites/machine/host.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "suites/codes.hpp"

namespace suites::machine {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

HostState roomy() {
  HostState state;
  state.memory_bytes = 64 * kGiB;
  state.available_bytes = 60 * kGiB;
  state.shared_bytes = 32 * kGiB;
  state.cores = 16;
  return state;
}

TEST(Host, RoomyMachineIsSound) {
  EXPECT_TRUE(judge_host(roomy(), {4 * kGiB, 8}).sound());
  EXPECT_EQ(roomy().usable_cores(), 16);
}

TEST(Host, TheContainersLimitCountsNotTheMachine) {
  HostState state = roomy();
  state.limit_bytes = 5 * kGiB;
  state.used_of_limit_bytes = 2 * kGiB;
  EXPECT_EQ(state.free_bytes(), 3 * kGiB);
  const Inspection found = judge_host(state, {4 * kGiB, 0});
  ASSERT_FALSE(found.sound());
  EXPECT_EQ(found.judgements[0].code, codes::kHostResources);
  EXPECT_NE(found.judgements[0].what_failed.find("limit of the container: 5368709120 bytes"), std::string::npos)
      << found.judgements[0].what_failed;
}

TEST(Host, HalfACoreIsFound) {
  HostState state = roomy();
  state.cpu_quota = 0.5;
  EXPECT_FALSE(judge_host(state, {}).sound());
  state.cpu_quota = 2.5;
  EXPECT_EQ(state.usable_cores(), 2);
  EXPECT_TRUE(judge_host(state, {}).sound());
}

TEST(Host, SmallSharedMemoryMattersForSeveralGpusOnly) {
  HostState state = roomy();
  state.shared_bytes = 64 << 20;  // what a container has by default
  EXPECT_TRUE(judge_host(state, {kGiB, 1}).sound());
  EXPECT_FALSE(judge_host(state, {kGiB, 2}).sound());
}

class MadeUpHost : public testing::Test {
 protected:
  MadeUpHost() {
    std::string pattern = (fs::temp_directory_path() / "host.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    fs::create_directories(folder / "cgroup");
    write("meminfo", "MemTotal:       24000000 kB\nMemFree: 5 kB\nMemAvailable:   20000000 kB\n");
  }
  ~MadeUpHost() override { fs::remove_all(folder); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder / name) << text; }
  [[nodiscard]] HostState look() const { return look_at_host({folder / "meminfo", folder / "cgroup", folder}); }
  fs::path folder;
};

TEST_F(MadeUpHost, VersionTwoOfControlGroups) {
  write("cgroup/memory.max", "8589934592\n");
  write("cgroup/memory.current", "1073741824\n");
  write("cgroup/cpu.max", "150000 100000\n");
  const HostState state = look();
  EXPECT_EQ(state.memory_bytes, 24000000LL * 1024);
  EXPECT_EQ(state.limit_bytes, 8 * kGiB);
  EXPECT_EQ(state.free_bytes(), 7 * kGiB);
  EXPECT_DOUBLE_EQ(*state.cpu_quota, 1.5);
}

TEST_F(MadeUpHost, NoLimits) {
  write("cgroup/memory.max", "max\n");
  write("cgroup/cpu.max", "max 100000\n");
  EXPECT_FALSE(look().limit_bytes.has_value());
  EXPECT_FALSE(look().cpu_quota.has_value());
}

TEST_F(MadeUpHost, VersionOne) {
  fs::create_directories(folder / "cgroup/memory");
  fs::create_directories(folder / "cgroup/cpu");
  write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // its way to say that there is none
  write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(look().limit_bytes.has_value());
  EXPECT_FALSE(look().cpu_quota.has_value());
  write("cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  write("cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(look().limit_bytes, kGiB);
  EXPECT_DOUBLE_EQ(*look().cpu_quota, 2);
}

TEST(Host, ThisMachineTellsSomething) {
  const HostState state = look_at_host();
  EXPECT_GT(state.memory_bytes, 0);
  EXPECT_GT(state.free_bytes(), 0);
  EXPECT_GE(state.usable_cores(), 1);
}

}  // namespace
}  // namespace suites::machine
