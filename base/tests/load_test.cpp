#include "base/load.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

namespace base {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A machine of two CPUs whose kernel says what a test writes; a third one is not this process's.
class Machine : public testing::Test {
 protected:
  Machine() {
    std::string pattern = (fs::path(testing::TempDir()) / "load.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    cpus(0, 0);
    thread(1, 0);
  }
  ~Machine() override { fs::remove_all(folder); }

  // Ticks (hundredths of a second) since some moment, on each of the two CPUs.
  void cpus(int busy, int idle, int steal = 0) {
    std::ofstream file(folder / "stat");
    file << "cpu  1 2 3 4 5 6 7 8 9 10\n";
    for (const char* name : {"cpu0", "cpu1"})
      file << name << ' ' << busy << " 0 0 " << idle << " 0 0 0 " << steal << ' ' << busy << " 0\n";
    file << "cpu2 99" << busy << " 0 0 0 0 0 0 0 0 0\nintr 1 2 3\n";
  }
  void thread(int number, double waited_s, int slices = 1) {
    fs::create_directories(folder / "task" / std::to_string(number));
    std::ofstream(folder / "task" / std::to_string(number) / "schedstat")
        << "5 " << static_cast<std::uint64_t>(waited_s * 1e9) << ' ' << slices << '\n';
  }
  [[nodiscard]] LoadMeter meter() {
    return LoadMeter({folder / "stat", folder / "task", {0, 1}, [this] { return now; }, [this] { return own; }});
  }
  fs::path folder;
  double now = 100, own = 7;
};

TEST_F(Machine, OthersAreWhatIsBusyAndNotOwn) {
  const LoadMeter meter = this->meter();
  now += 10, own += 6;
  cpus(900, 100);
  thread(1, 0.6);
  const Load load = meter.read();
  EXPECT_TRUE(load.known);
  EXPECT_EQ(load.cores, 2);
  EXPECT_DOUBLE_EQ(load.wall_s, 10);
  EXPECT_DOUBLE_EQ(load.own_cores, 0.6);
  EXPECT_DOUBLE_EQ(load.others_cores, 1.2) << "guests are in user time already, and the third CPU is not ours";
  EXPECT_DOUBLE_EQ(*load.waiting, 0.06);
  EXPECT_NEAR(*load.waited_share(), 0.06 / 0.66, 1e-12);
  EXPECT_EQ(load.describe(), "other processes used 1.2 of 2 cores, threads waited 9 % of their time");
}

// One thread that computes all the time, and has a fifth of a core.
TEST_F(Machine, HowMuchSlowerWorkIs) {
  const LoadMeter meter = this->meter();
  now += 10, own += 2;
  cpus(1000, 0);
  thread(1, 8);
  EXPECT_NEAR(meter.read().slowdown(), 5, 1e-9);
  own -= 1.9;
  thread(1, 0.9);
  EXPECT_NEAR(meter.read().slowdown(), 1 / (1 - 0.09), 1e-9) << "it hardly ever wanted one";
  own += 19.8, thread(1, 9.9);
  EXPECT_EQ(meter.read().slowdown(), 1) << "own threads wait for each other";
  own -= 17.9;
  cpus(1000, 0, 1000);
  thread(1, 2);
  EXPECT_NEAR(meter.read().slowdown(), 1 / ((1 - 0.5 * 0.4) * (1 - 0.5)), 1e-9)
      << "the host takes half of the CPUs besides";
  Load untold = meter.read();
  untold.waiting.reset();
  EXPECT_EQ(untold.slowdown(), std::numeric_limits<double>::infinity());
  untold.known = false;
  EXPECT_EQ(untold.slowdown(), 1);
}

TEST_F(Machine, SeveralProcessesWaitTogether) {
  LoadSources sources{folder / "stat", folder / "nobody", {0, 1}, [this] { return now; }, [this] { return own; }};
  sources.all_tasks = [this] { return std::vector<fs::path>{folder / "task", folder / "gone", folder / "more"}; };
  fs::create_directories(folder / "more");
  const LoadMeter meter(sources);
  now += 10, own += 2;
  cpus(1000, 0);
  thread(1, 3);
  fs::create_directories(folder / "more" / "2");
  std::ofstream(folder / "more/2/schedstat") << "5 4000000000 1\n";
  EXPECT_DOUBLE_EQ(*meter.read().waiting, 0.7) << "one that began meanwhile too";
}

TEST_F(Machine, OthersThatCostNothingAreNoLoad) {
  const LoadMeter meter = this->meter();
  now += 10, own += 6;
  cpus(600, 400);
  thread(1, 0.3);
  EXPECT_FALSE(meter.read().busy()) << "there is room for both";
  EXPECT_FALSE(meter.read().calm());
}

TEST_F(Machine, OwnThreadsThatWaitForEachOtherAreNoLoad) {
  const LoadMeter meter = this->meter();
  now += 10, own += 20;
  cpus(1000, 0);
  for (int i = 2; i < 10; ++i) thread(i, 9);
  const Load load = meter.read();
  EXPECT_GT(*load.waited_share(), 0.7);
  EXPECT_FALSE(load.busy());
  EXPECT_TRUE(load.calm());
}

TEST_F(Machine, OthersThatMakeOwnThreadsWaitAreALoad) {
  const LoadMeter meter = this->meter();
  now += 10, own += 7;
  cpus(600, 400);
  thread(1, 2);
  EXPECT_TRUE(meter.read().busy());
}

TEST_F(Machine, AFullMachineIsALoadAlsoWhenNobodyWaits) {
  const LoadMeter meter = this->meter();
  now += 10, own += 10;
  cpus(990, 10);
  EXPECT_TRUE(meter.read().busy()) << "the two halves of one core share its units";
}

TEST_F(Machine, WhoHardlyRunsLosesNothingByWaiting) {
  const LoadMeter meter = this->meter();
  now += 10, own += 0.1;
  cpus(500, 500);
  thread(1, 0.1);
  EXPECT_NEAR(*meter.read().waited_share(), 0.5, 1e-9);
  EXPECT_FALSE(meter.read().busy()) << "a hundredth of the time";
}

TEST_F(Machine, WhatTheHostTakesIsALoad) {
  const LoadMeter meter = this->meter();
  now += 10, own += 4;
  cpus(200, 600, 200);
  const Load load = meter.read();
  EXPECT_DOUBLE_EQ(load.steal_share, 0.2);
  EXPECT_DOUBLE_EQ(load.others_cores, 0.4);
  EXPECT_TRUE(load.busy());
  EXPECT_THAT(load.describe(), HasSubstr("the host took 20 % of the CPUs away"));
}

TEST_F(Machine, ThreadsThatEndedAreLeftOutAndNewOnesCountFromNothing) {
  thread(2, 50);
  thread(3, 50);
  const LoadMeter meter = this->meter();
  now += 10;
  cpus(500, 500);
  fs::remove_all(folder / "task" / "2");
  thread(3, 1);  // another thread of an old number
  thread(4, 2);
  EXPECT_DOUBLE_EQ(*meter.read().waiting, 0.3);
}

TEST_F(Machine, AKernelThatDoesNotCountDelaysIsJudgedByItsCpus) {
  thread(1, 0, 0);
  const LoadMeter meter = this->meter();
  now += 10, own += 6;
  cpus(700, 300);
  thread(1, 0, 0);
  EXPECT_FALSE(meter.read().waiting.has_value());
  EXPECT_FALSE(meter.read().busy());
  EXPECT_EQ(meter.read().describe(), "other processes used 0.8 of 2 cores");
  cpus(950, 50);
  EXPECT_TRUE(meter.read().busy());
  fs::remove_all(folder / "task");
  EXPECT_FALSE(meter.read().waiting.has_value());
  EXPECT_TRUE(meter.read().busy());
}

TEST_F(Machine, WhatIsNotToldIsUnknownAndNeverBusy) {
  const LoadMeter still = meter();
  now += 10;
  Load load = still.read();
  EXPECT_FALSE(load.known);
  EXPECT_FALSE(load.busy());
  EXPECT_TRUE(load.calm());
  EXPECT_THAT(load.describe(), AllOf(HasSubstr("unknown"), HasSubstr("stand still")));

  for (const char* text : {"", "cpu  1 2 3 4\n", "cpu2 1 2 3 4\n", "cpux 1 2 3 4\ncpu 3\n"}) {
    std::ofstream(folder / "stat") << text;
    load = meter().read();
    EXPECT_FALSE(load.known) << text;
    EXPECT_FALSE(load.busy()) << text;
  }
  fs::remove(folder / "stat");
  load = still.read();
  EXPECT_FALSE(load.known);
  EXPECT_THAT(load.why_unknown, HasSubstr((folder / "stat").string()));
  EXPECT_FALSE(Load().busy());
}

TEST(Load, ANumberThatIsNoneIsNotBusy) {
  Load load;
  load.known = true;
  load.cores = 2;
  load.others_cores = std::numeric_limits<double>::quiet_NaN();
  load.waiting = 1;
  EXPECT_FALSE(load.busy());
  EXPECT_FALSE(load.calm());
}

TEST(LoadMeter, ThisMachineTellsSomethingOrWhyNot) {
  const LoadMeter meter;
  const Load at_once = meter.read();
  EXPECT_GE(at_once.wall_s, LoadMeter::kShortest_s);
  if (!at_once.known) GTEST_SKIP() << at_once.describe();
  EXPECT_GE(at_once.cores, 1);
  EXPECT_LE(at_once.own_cores + at_once.others_cores, 1.5 * at_once.cores);
}

// Two threads on one core wait for each other, whoever else is there.
TEST(LoadMeter, OwnWaitingIsSeen) {
  const LoadMeter meter;
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      sched_setaffinity(0, sizeof one, &one);
      while (!over) {
      }
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const Load load = meter.read();
  over = true;
  for (std::thread& thread : threads) thread.join();
  if (!load.known || !load.waiting) GTEST_SKIP() << load.describe();
  EXPECT_GT(*load.waiting, 0.3);
}

}  // namespace
}  // namespace base
