#include "nsa/parallel/world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/tests/changed_environment.hpp"

namespace {

using namespace nsa::parallel;
using base::Environment;
using base::tests::with;
using base::tests::without;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

const Environment kTorchrun = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node1"},
                               {"MASTER_PORT", "29500"}};
const Environment kSlurm = {{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},
                            {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "4711"},
                            {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_NODELIST", "gpu[07-08,11]-ib"}};

std::string mistake_of(const Environment& environment) {
  try {
    (void)world_of(environment);
  } catch (const base::EnvironmentInvalid& invalid) {
    return invalid.what();
  }
  return "";
}

TEST(World, AloneWhereNothingIsSaid) {
  const World world = world_of({{"HOME", "/"}});
  EXPECT_EQ(world.origin, World::Origin::alone);
  EXPECT_EQ(world.size, 1);
}

TEST(World, OfTorchrun) {
  const World world =
      world_of(with(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"), "TORCHELASTIC_RESTART_COUNT", "2"));
  EXPECT_EQ(world.origin, World::Origin::torchrun);
  EXPECT_EQ(world.rank, 5);
  EXPECT_EQ(world.size, 8);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 4);
  EXPECT_EQ(world.address, "node1");
  EXPECT_EQ(world.port, 29500);
  EXPECT_TRUE(world.store_is_served);
  EXPECT_EQ(world.attempt, "2");
  EXPECT_FALSE(world_of(kTorchrun).store_is_served);
}

TEST(World, OfSlurm) {
  const World world = world_of(kSlurm);
  EXPECT_EQ(world.origin, World::Origin::slurm);
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.address, "gpu07-ib");
  EXPECT_FALSE(world.store_is_served);
  EXPECT_NE(world.port, world_of(with(kSlurm, "SLURM_STEP_ID", "1")).port) << "two steps of a job do not meet";
  EXPECT_NE(world.port, world_of(with(kSlurm, "SLURM_JOB_ID", "4712")).port);
  EXPECT_EQ(world_of(with(kSlurm, "MASTER_PORT", "1234")).port, 1234);
  EXPECT_EQ(world_of(with(kSlurm, "MASTER_ADDR", "here")).address, "here");
  EXPECT_EQ(world_of(with(with(kSlurm, "SLURM_NTASKS", "1"), "SLURM_PROCID", "0")).origin, World::Origin::alone);
  auto both = kSlurm;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(world_of(both).origin, World::Origin::torchrun) << "torchrun under srun";
}

TEST(World, OfTheStarterIsReadAgain) {
  World world;
  world.rank = world.local_rank = 2;
  world.size = world.local_size = 3;
  world.address = "127.0.0.1";
  world.port = 4000;
  const World again = world_of(environment_of(world));
  EXPECT_EQ(again.origin, World::Origin::nproc);
  EXPECT_EQ(again.rank, 2);
  EXPECT_EQ(again.size, 3);
  EXPECT_EQ(again.port, 4000);
  EXPECT_TRUE(again.store_is_served);
  EXPECT_EQ(again.attempt, "0");
}

// Who the process is: base/tests/launch_test.cpp.
TEST(World, EveryMistakeIsNamed) {
  EXPECT_THAT(mistake_of(without(kTorchrun, "WORLD_SIZE")), HasSubstr("RANK is '5', and WORLD_SIZE is not set"));
  EXPECT_THAT(mistake_of(without(kTorchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(mistake_of(without(kTorchrun, "MASTER_PORT")), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "RANK", "8")), HasSubstr("RANK is '8', allowed is an integer from 0 to 7"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "MASTER_PORT", "70000")), HasSubstr("MASTER_PORT is '70000'"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "MASTER_PORT", "0")), HasSubstr("MASTER_PORT is '0'"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "MASTER_ADDR", "")), HasSubstr("MASTER_ADDR is ''"));
  EXPECT_THAT(mistake_of(without(kSlurm, "SLURM_JOB_ID")), HasSubstr("SLURM_JOB_ID is not set"));
  EXPECT_THAT(mistake_of(without(kSlurm, "SLURM_JOB_NODELIST")), HasSubstr("SLURM_JOB_NODELIST is not set"));
  EXPECT_THAT(mistake_of(with(kSlurm, "SLURM_JOB_NODELIST", "n[")), HasSubstr("SLURM_JOB_NODELIST is 'n['"));
  const std::string two = mistake_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "y"}});
  EXPECT_THAT(two, HasSubstr("2 mistakes in the environment:\nRANK is 'x'"));
  EXPECT_THAT(two, HasSubstr("\nMASTER_PORT is 'y'"));
}

TEST(World, SaysWhatC10dIsToBeTold) {
  EXPECT_EQ(world_of(kTorchrun).network_interface, "");
  EXPECT_FALSE(world_of(kTorchrun).c10d_speaks);
  EXPECT_EQ(world_of(with(kTorchrun, "GLOO_SOCKET_IFNAME", "eth1")).network_interface, "eth1");
  EXPECT_TRUE(world_of(with(kTorchrun, "TORCH_CPP_LOG_LEVEL", "INFO")).c10d_speaks);
}

TEST(World, AnInterfaceThatThisMachineLacksIsTold) {
  EXPECT_EQ(why_no_interface(world_of(kTorchrun)), "");
  EXPECT_EQ(why_no_interface(world_of(with(kTorchrun, "GLOO_SOCKET_IFNAME", "lo"))), "");
  EXPECT_THAT(why_no_interface(world_of(with(kTorchrun, "GLOO_SOCKET_IFNAME", "lo,eth"))),
              AllOf(HasSubstr("GLOO_SOCKET_IFNAME is 'lo,eth', allowed is a network interface of this machine: "),
                    ContainsRegex(": .*lo")));
}

TEST(World, HowManyThisHostHas) {
  EXPECT_EQ(world_of(kSlurm).local_size, 2) << "at least";
  EXPECT_EQ(world_of(with(kSlurm, "SLURM_NTASKS_PER_NODE", "4")).local_size, 4) << "as the job asked for";
  EXPECT_EQ(world_of(with(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "2(x2)"), "SLURM_NODEID", "1")).local_size, 2);
}

TEST(World, TheFirstHostOfAList) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_host("node[003-010,12]-ib,other"), "node003-ib");
  EXPECT_EQ(first_host("r[1-2]n[3,4]"), "r1n3");
  for (const char* wrong : {"", ",", "node[", "node[]", "node[x-y]", "a b"})
    EXPECT_EQ(first_host(wrong), std::nullopt) << wrong;
}

TEST(World, ASizeOfSumsThatIsNoneIsAMistake) {
  EXPECT_EQ(mistake_of(with(kTorchrun, "NPROC_SUM_BUCKET_KB", "8192")), "");
  EXPECT_THAT(mistake_of(with(kTorchrun, "NPROC_SUM_BUCKET_KB", "25MB")),
              HasSubstr("NPROC_SUM_BUCKET_KB is '25MB', allowed is an integer from 0 to 1073741824"));
}

}  // namespace
