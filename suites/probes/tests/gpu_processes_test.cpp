#include "suites/probes/gpu_processes.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <map>

namespace {

using namespace suites::probes;

std::optional<std::int64_t> family(std::int64_t pid) {
  switch (pid) {
    case 10:
      return 9;  // worker of supervisor 9
    case 11:
      return 10;  // its child
    case 9:
      return 1;
    case 50:
      return 1;  // somebody else
    default:
      return std::nullopt;
  }
}

GpuCensus census(std::vector<ProcessOnGpu> processes) {
  GpuCensus c;
  c.processes = std::move(processes);
  return c;
}

TEST(GpuProcesses, TellsOwnTreeFromOthers) {
  const auto result =
      find_foreign(census({{10, "", 1}, {11, "", 1}, {50, "python", 7}, {60, "gone", 3}}), 10, 9, family);
  ASSERT_TRUE(result.can_tell);
  ASSERT_EQ(result.foreign.size(), 2U);
  EXPECT_EQ(result.foreign[0].pid, 50);
  EXPECT_EQ(result.foreign[1].pid, 60);  // no parent here: not ours
}

TEST(GpuProcesses, CannotTellWithoutItself) {
  const auto result = find_foreign(census({{50, "", 1}}), 10, 9, family);
  EXPECT_FALSE(result.can_tell);
  EXPECT_NE(result.why_not.find("pid 10"), std::string::npos);
  EXPECT_FALSE(find_foreign(census({}), 10, 9, family).can_tell);
}

TEST(GpuProcesses, CannotTellWithoutNvml) {
  const auto c = take_census(Nvml([](const char*) -> void* { return nullptr; }), "0000:01:00.0");
  EXPECT_FALSE(c.why_not.empty());
  EXPECT_FALSE(find_foreign(c, 10, 9, family).can_tell);
}

TEST(GpuProcesses, WithoutAContextNothingOnTheListIsOwn) {
  EXPECT_EQ(all_processes(census({{50, "python", 7}})).foreign.size(), 1U);
  EXPECT_TRUE(all_processes(census({})).can_tell);
  GpuCensus hidden = census({});
  hidden.memory = GpuMemory{std::uint64_t{140} << 30, std::uint64_t{120} << 30, std::uint64_t{20} << 30};
  EXPECT_FALSE(all_processes(hidden).can_tell) << "20 GiB are held by somebody who is not on the list";
  hidden.why_not = "no driver";
  EXPECT_FALSE(all_processes(hidden).can_tell);
}

TEST(GpuProcesses, HowToEndOneDependsOnItsState) {
  EXPECT_EQ(how_to_end({7, "python", 1, "", "ada", 'S'}), "of ada; kill 7, and kill -9 7 if it stays");
  EXPECT_NE(how_to_end({7, "python", 1, "", "ada", 'Z'}).find("end the parent"), std::string::npos);
  const std::string waits = how_to_end({7, "python", 1, "", "ada", 'D'});
  EXPECT_EQ(waits.find("of ada; 11 looks within a second saw it wait in the kernel (state D)"), 0U) << waits;
  EXPECT_NE(waits.find("kill -9 7, and where it stays, reset the GPU"), std::string::npos) << waits;
  EXPECT_NE(how_to_end({7, "", 1}).find("not visible here"), std::string::npos);
  EXPECT_EQ(describe({7, "", std::nullopt}), "pid 7 (name unknown) with an unknown number of bytes");
}

// A healthy process is D for a moment: a read from a disk, a page that comes back.
TEST(GpuProcesses, AProcessThatWaitsForAMomentIsNotSaidToBeStuck) {
  std::vector<ProcessOnGpu> processes{{7, "moment", 1, "", "", 'D'},
                                      {8, "stuck", 1, "", "", 'D'},
                                      {9, "sleeps", 1, "", "", 'S'},
                                      {10, "gone", 1, "", "", 'D'}};
  std::map<std::int64_t, int> looks;
  look_again(
      processes,
      [&](std::int64_t pid) {
        ++looks[pid];
        return pid == 10 ? '?' : pid == 7 && looks[pid] == 10 ? 'S' : 'D';
      },
      std::chrono::milliseconds(0));
  EXPECT_EQ(processes[0].state, 'S') << "the last look saw it elsewhere";
  EXPECT_EQ(how_to_end(processes[0]), "kill 7, and kill -9 7 if it stays");
  EXPECT_EQ(processes[1].state, 'D');
  EXPECT_EQ(looks[8], kLooksAtState - 1) << "besides the one that found it";
  EXPECT_EQ(looks.count(9), 0U) << "nobody asks";
  EXPECT_EQ(processes[3].state, '?');
  EXPECT_EQ(looks[10], 1);
}

TEST(GpuProcesses, ParentOfThisProcess) {
  EXPECT_EQ(parent_of(getpid()), getppid());
  EXPECT_EQ(parent_of(0x7fffffff), std::nullopt);
}

}  // namespace
