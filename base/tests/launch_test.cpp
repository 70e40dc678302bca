// Launches as torchrun and Slurm tell them, and what they tell wrongly.
#include "base/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/tests/changed_environment.hpp"

namespace {

using base::Environment;
using base::Launch;
using base::launch_in;
using base::tests::with;
using base::tests::without;
using testing::AllOf;
using testing::HasSubstr;

// As srun tells it.
Environment task(const std::string& rank, const std::string& tasks) {
  return {{"SLURM_PROCID", rank},
          {"SLURM_NTASKS", tasks},
          {"SLURM_LOCALID", "0"},
          {"SLURM_JOB_ID", "77"},
          {"SLURM_STEP_ID", "0"}};
}

TEST(Launch, ASingleProcessIsNone) {
  for (const Environment& environment : std::vector<Environment>{{},
                                                                 {{"SLURM_PROCID", "0"}},  // a script of sbatch
                                                                 {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
                                                                 {{"SLURM_NTASKS", "8"}},  // a shell of salloc
                                                                 {{"LOCAL_RANK", "1"}}})
    EXPECT_FALSE(launch_in(environment).has_value());
  EXPECT_EQ(launch_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}})->size, 1) << "torchrun of one process";
}

// As Slurm has set them: in a script of sbatch (with --ntasks=4), in a shell of salloc, and in its interactive step.
const Environment kScript{{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"},
                          {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS_PER_NODE", "4"}};
const Environment kShell{{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "77"}, {"SLURM_JOB_NODELIST", "n[1-2]"}};
const Environment kInteractiveStep{{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_STEP_ID", "4294967290"},
                                   {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_NUM_TASKS", "1"}};

TEST(Launch, WhatRunsInAnAllocationWithoutSrunIsAloneAndSaysSo) {
  for (const Environment& environment : {kScript, kShell, kInteractiveStep})
    EXPECT_FALSE(launch_in(environment).has_value());
  EXPECT_THAT(base::alone_in_allocation(kScript),
              AllOf(HasSubstr("SLURM_NTASKS is '4', and SLURM_STEP_ID is not set"), HasSubstr("runs alone; put srun")));
  EXPECT_THAT(base::alone_in_allocation(kShell), HasSubstr("SLURM_NTASKS is '8'"));
  for (const Environment& nothing :
       {Environment{}, Environment{{"SLURM_PROCID", "0"}}, kInteractiveStep, with(kScript, "SLURM_NTASKS", "1"),
        with(kScript, "SLURM_STEP_ID", "0"), with(with(kScript, "RANK", "0"), "WORLD_SIZE", "4")})
    EXPECT_EQ(base::alone_in_allocation(nothing), "");
}

TEST(Launch, TorchrunIsTheInnerOne) {
  Environment both = task("1", "2");
  both.insert({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}});
  const auto launch = launch_in(both);
  EXPECT_EQ(launch->launcher, Launch::Launcher::torchrun);
  EXPECT_EQ(launch->rank, 5);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->local_size, 4);
  EXPECT_EQ(launch->job, "77");
  EXPECT_EQ(launch_in(with(both, "TORCHELASTIC_RUN_ID", "j1"))->job, "j1");
}

TEST(Launch, OfSlurmTheStepCounts) {
  const auto launch = launch_in(with(with(task("3", "8"), "SLURM_STEP_NUM_TASKS", "4"), "SLURM_STEP_ID", "2"));
  EXPECT_EQ(launch->launcher, Launch::Launcher::slurm);
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 4);
  EXPECT_EQ(launch->job, "77.2");
  EXPECT_EQ(launch->local_size, std::nullopt);
}

TEST(Launch, EveryMistakeIsToldWithItsVariable) {
  const std::vector<std::pair<Environment, const char*>> rows{
      {{{"RANK", "1"}}, "RANK is '1', and WORLD_SIZE is not set"},
      {{{"WORLD_SIZE", "2"}}, "WORLD_SIZE is '2', and RANK is not set"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK is '2', allowed is an integer from 0 to 1"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK is '-1', allowed is"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE is '0', allowed is an integer from 1 to"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "two"}}, "WORLD_SIZE is 'two'"},
      {{{"RANK", ""}, {"WORLD_SIZE", "2"}}, "RANK is ''"},
      {{{"RANK", "1 "}, {"WORLD_SIZE", "2"}}, "RANK is '1 '"},
      {{{"RANK", "99999999999999999999"}, {"WORLD_SIZE", "2"}}, "RANK is '99999999999999999999'"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"}}, "LOCAL_RANK is '3'"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}}, "LOCAL_WORLD_SIZE is '3'"},
      {{{"SLURM_PROCID", "3"}}, "SLURM_PROCID is '3', and SLURM_NTASKS is not set"},
      {{{"SLURM_PROCID", ""}, {"SLURM_NTASKS", "2"}}, "SLURM_PROCID is ''"},
      {without(task("1", "2"), "SLURM_STEP_ID"), "SLURM_PROCID is '1', and SLURM_STEP_ID is not set"},
      {without(task("0", "2"), "SLURM_NTASKS"), "SLURM_PROCID is '0', and SLURM_NTASKS is not set"},
      {without(task("0", "2"), "SLURM_PROCID"), "SLURM_STEP_ID is '0', and SLURM_PROCID is not set"},
      {{{"SLURM_STEP_ID", "0"}}, "SLURM_STEP_ID is '0', and SLURM_PROCID is not set"},
      {task("3", "3"), "SLURM_PROCID is '3', allowed is an integer from 0 to 2"},
      {without(task("1", "2"), "SLURM_JOB_ID"), "SLURM_PROCID is '1', and SLURM_JOB_ID is not set"},
      {without(task("1", "2"), "SLURM_LOCALID"), "SLURM_PROCID is '1', and SLURM_LOCALID is not set"},
      {with(task("0", "2"), "SLURM_JOB_ID", "seven"), "SLURM_JOB_ID is 'seven'"},
      {with(task("0", "2"), "SLURM_LOCALID", "x"), "SLURM_LOCALID is 'x'"}};
  for (const auto& [environment, says] : rows) try {
      (void)launch_in(environment);
      ADD_FAILURE() << says;
    } catch (const base::EnvironmentInvalid& error) {
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  try {
    (void)launch_in({{"RANK", "x"}, {"WORLD_SIZE", "y"}});
    ADD_FAILURE();
  } catch (const base::EnvironmentInvalid& error) {
    EXPECT_THAT(error.what(), HasSubstr("WORLD_SIZE is 'y'"));
    EXPECT_THAT(error.what(), HasSubstr("\nRANK is 'x'"));
  }
}

}  // namespace
