#include "suites/machine/load.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "suites/codes.hpp"

namespace suites::machine {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

// Two CPUs; this process is 10, of the run of 9; a second passes between two looks.
class MadeUpMachine : public testing::Test {
 protected:
  MadeUpMachine() {
    std::string pattern = (fs::path(testing::TempDir()) / "load.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    cpus(1000, 1000);
  }
  ~MadeUpMachine() override { fs::remove_all(folder); }

  void cpus(int busy, int idle) const {
    std::ofstream(folder / "stat") << "cpu0 " << busy << " 0 0 " << idle << " 0 0 0 0\ncpu1 " << busy << " 0 0 " << idle
                                   << " 0 0 0 0\n";
  }
  void process(int pid, int parent, const std::string& name, int ticks) const {
    fs::create_directories(folder / std::to_string(pid));
    std::ofstream(folder / std::to_string(pid) / "stat")
        << pid << " (" << name << ") R " << parent << " 5 6 7 8 9 10 11 12 13 " << ticks << " 3 16 17\n";
  }
  [[nodiscard]] LoadState look(const std::function<void()>& meanwhile) {
    double now = 0;
    return look_at_load(
        {folder, {folder / "stat", folder / "task", {0, 1}, [&] { return now; }, [] { return 0.0; }}, 10, 9, [&] {
           meanwhile();
           now += 1;
         }});
  }
  fs::path folder;
};

TEST_F(MadeUpMachine, WhoUsesTheCpusIsNamedBusiestFirst) {
  process(50, 1, "sh) R 1 (", 100);
  process(60, 1, "make", 7);
  process(70, 1, "idle", 7);
  const Inspection found = judge_load(look([&] {
    cpus(1075, 1025);
    process(50, 1, "sh) R 1 (", 150);
    process(60, 1, "make", 107);
    process(80, 1, "began meanwhile", 5000);
  }));
  ASSERT_EQ(found.judgements.size(), 1U);
  const Judgement& judgement = found.judgements[0];
  EXPECT_FALSE(judgement.holds);
  EXPECT_EQ(judgement.code, codes::kMachineLoad);
  EXPECT_EQ(judgement.what_failed, "other processes use 1.5 of 2 cores: pid 60 (make) 1.0, pid 50 (sh) R 1 () 0.5");
  EXPECT_EQ(found.seen.at("processes").size(), 2U);
  EXPECT_EQ(found.seen.at("processes")[0].at("pid"), 60);
}

TEST_F(MadeUpMachine, TheRestOfThisRunIsNoStranger) {
  process(9, 1, "nsa-validate", 0);
  process(10, 9, "worker", 0);
  process(11, 9, "next worker", 0);
  process(12, 11, "its child", 0);
  const LoadState state = look([&] {
    cpus(1065, 1035);
    process(9, 1, "nsa-validate", 10);
    process(11, 9, "next worker", 60);
    process(12, 11, "its child", 50);
  });
  EXPECT_NEAR(state.load.others_cores, 1.3, 1e-9);
  EXPECT_NEAR(state.others_cores(), 0.1, 1e-9);
  EXPECT_TRUE(state.processes.empty());
  EXPECT_TRUE(judge_load(state).sound());
}

TEST_F(MadeUpMachine, AQuarterOfTheCpusIsNotMuchAndMoreIs) {
  EXPECT_TRUE(judge_load(look([&] { cpus(1025, 1075); })).sound());
  cpus(1000, 1000);
  const Inspection found = judge_load(look([&] { cpus(1026, 1074); }));
  ASSERT_FALSE(found.sound());
  EXPECT_THAT(found.judgements[0].what_failed, HasSubstr("none that is visible here"));
}

TEST_F(MadeUpMachine, WhatCannotBeToldIsNeitherGoodNorBad) {
  const Inspection found = judge_load(look([] {}));
  EXPECT_TRUE(found.cannot_tell);
  EXPECT_TRUE(found.judgements.empty());
  EXPECT_THAT(found.summary, HasSubstr("unknown"));
  EXPECT_EQ(found.seen.at("known"), false);
}

TEST(MachineLoad, OfThisMachine) {
  const LoadState state = look_at_load();
  if (!state.load.known) GTEST_SKIP() << state.load.describe();
  EXPECT_GE(state.others_cores(), 0);
  EXPECT_LE(state.others_cores(), 1.5 * state.load.cores);
  for (const BusyProcess& p : state.processes) EXPECT_NE(p.pid, getpid());
}

}  // namespace
}  // namespace suites::machine
