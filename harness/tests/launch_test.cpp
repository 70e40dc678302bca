// Launches as torchrun and Slurm tell them, and what they tell wrongly.
#include "harness/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "harness/settings.hpp"

namespace {

using base::Environment;
using harness::gpu_of;
using harness::Launch;
using harness::launch_of;
using testing::HasSubstr;

TEST(Launch, ASingleProcessIsNone) {
  for (const Environment& environment : std::vector<Environment>{{},
                                                                 {{"RANK", "0"}, {"WORLD_SIZE", "1"}},
                                                                 {{"SLURM_PROCID", "0"}},  // a script of sbatch
                                                                 {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
                                                                 {{"SLURM_NTASKS", "8"}},  // a shell of salloc
                                                                 {{"LOCAL_RANK", "1"}}})
    EXPECT_FALSE(launch_of(environment, "h").has_value());
}

TEST(Launch, OfTorchrun) {
  const auto launch = launch_of({{"RANK", "5"},
                                 {"WORLD_SIZE", "8"},
                                 {"LOCAL_RANK", "1"},
                                 {"LOCAL_WORLD_SIZE", "4"},
                                 {"TORCHELASTIC_RUN_ID", "j1"},
                                 {"SLURM_PROCID", "1"},
                                 {"SLURM_NTASKS", "2"}},
                                "node07");
  ASSERT_TRUE(launch.has_value());
  EXPECT_EQ(launch->launcher, "torchrun") << "the inner one";
  EXPECT_EQ(launch->rank, 5);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->job, "j1");
  EXPECT_EQ(launch->name(), "node07.5");
  EXPECT_EQ(
      launch_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}, "h")->name(),
      "h");
}

Environment slurm(const std::string& rank, const std::string& node, const std::string& tasks) {
  return {{"SLURM_PROCID", rank},          {"SLURM_NTASKS", "5"},
          {"SLURM_LOCALID", "0"},          {"SLURM_NODEID", node},
          {"SLURM_JOB_ID", "77"},          {"SLURM_STEP_ID", "3"},
          {"SLURMD_NODENAME", "n" + node}, {"SLURM_STEP_TASKS_PER_NODE", tasks}};
}

TEST(Launch, OfSlurmKnowsHowManyAHostHas) {
  const auto launch = launch_of(slurm("4", "2", "2(x2),1"), "h");
  EXPECT_EQ(launch->launcher, "slurm");
  EXPECT_EQ(launch->job, "77.3");
  EXPECT_EQ(launch->local_size, 1);
  EXPECT_EQ(launch->name(), "n2") << "Slurm's name of the node";
  EXPECT_EQ(launch_of(slurm("1", "0", "2(x2),1"), "h")->name(), "n0.1");
  EXPECT_EQ(launch_of(slurm("2", "1", "2(x2),1"), "h")->local_size, 2);
}

TEST(Launch, WhereNobodySaysHowManyAHostHasTheRankIsInTheName) {
  EXPECT_EQ(launch_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "h")->name(), "h.1");
  for (const char* tasks : {"", "x", "2(", "2(x", "1(x2", ","})
    EXPECT_EQ(launch_of(slurm("4", "2", tasks), "h")->name(), "n2.4") << tasks;
}

TEST(Launch, NoTwoProcessesOfALaunchHaveTheSameName) {
  std::set<std::string> names;
  int rank = 0;
  const std::vector<int> tasks{2, 2, 1};
  for (int node = 0; node < 3; ++node)
    for (int local = 0; local < tasks[static_cast<std::size_t>(node)]; ++local)
      names.insert(launch_of(slurm(std::to_string(rank++), std::to_string(node), "2(x2),1"), "same")->name());
  EXPECT_EQ(names.size(), 5U);
}

TEST(Launch, AHostsNameIsFitForAFolder) {
  const auto named = [](const std::string& host) {
    return launch_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, host)->name();
  };
  EXPECT_EQ(named("../../etc"), "host.._.._etc.1");
  EXPECT_EQ(named(""), "host.1");
  EXPECT_EQ(named("a b\n\x1b"), "a_b__.1");
}

TEST(Launch, WhatIsWrongIsAMistakeOfUsage) {
  try {
    (void)launch_of({{"RANK", "x"}, {"WORLD_SIZE", "y"}}, "h");
    ADD_FAILURE();
  } catch (const harness::UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("2 mistakes in the environment:\nWORLD_SIZE is 'y'"));
    EXPECT_THAT(error.what(), HasSubstr("\nRANK is 'x'"));
  }
}

Launch local(int rank, int size) {
  Launch launch;
  launch.size = 8;
  launch.local_rank = rank;
  launch.local_size = size;
  return launch;
}

TEST(Launch, ProcessesOfAHostTakeGpusOfTheirOwn) {
  EXPECT_EQ(gpu_of(local(1, 2), std::nullopt, 4), "1");
  EXPECT_EQ(gpu_of(local(1, 2), "5,7", 8), "7");
  EXPECT_EQ(gpu_of(local(1, 2), "GPU-a,GPU-b", 8), "GPU-b");
  EXPECT_EQ(gpu_of(local(1, 2), "3", 8), std::nullopt) << "the launcher has bound it";
  EXPECT_EQ(gpu_of(local(1, 2), "", 8), std::nullopt) << "none is to be used";
  EXPECT_EQ(gpu_of(local(1, 2), std::nullopt, 0), std::nullopt) << "a host without GPUs";
  EXPECT_EQ(gpu_of(local(0, 1), std::nullopt, 4), std::nullopt) << "it may use all";
  Launch unknown = local(1, 2);
  unknown.local_rank.reset();
  EXPECT_EQ(gpu_of(unknown, std::nullopt, 4), std::nullopt);
}

TEST(Launch, AProcessWithoutAGpuOfItsOwnIsRefusedAndNotPutOnTheCpu) {
  EXPECT_THROW((void)gpu_of(local(1, 2), std::nullopt, 1), harness::UsageError);
  EXPECT_THROW((void)gpu_of(local(2, 3), "0,1", 8), harness::UsageError);
}

}  // namespace
