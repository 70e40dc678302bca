#include "nsa/parallel/world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using namespace nsa::parallel;
using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

const Environment kTorchrun = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node1"},
                               {"MASTER_PORT", "29500"}};
const Environment kSlurm = {{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},
                            {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "4711"},
                            {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_NODELIST", "gpu[07-08,11]-ib"}};

Environment with(Environment all, const std::string& name, const std::string& value) {
  all[name] = value;
  return all;
}
Environment without(Environment all, const std::string& name) {
  all.erase(name);
  return all;
}

std::string mistake_of(const Environment& environment) {
  try {
    (void)world_of(environment);
  } catch (const WorldInvalid& invalid) {
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

TEST(World, EveryMistakeIsNamed) {
  EXPECT_THAT(mistake_of(without(kTorchrun, "WORLD_SIZE")), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(mistake_of(without(kTorchrun, "RANK")), HasSubstr("RANK is not set"));
  EXPECT_THAT(mistake_of(without(kTorchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(mistake_of(without(kTorchrun, "MASTER_PORT")), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "WORLD_SIZE", "0")), HasSubstr("WORLD_SIZE = '0': a whole number from 1"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "RANK", "8")), HasSubstr("RANK = 8 with WORLD_SIZE = 8: a rank is 0 to 7"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "RANK", "-1")), HasSubstr("RANK = '-1'"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "RANK", "")), HasSubstr("RANK = ''"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "RANK", "1x")), HasSubstr("RANK = '1x'"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "RANK", "99999999999999999999")), HasSubstr("RANK = '9999"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "LOCAL_RANK", "4")), HasSubstr("LOCAL_RANK = 4 with LOCAL_WORLD_SIZE = 4"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "MASTER_PORT", "70000")), HasSubstr("MASTER_PORT = '70000'"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "MASTER_PORT", "0")), HasSubstr("MASTER_PORT = '0'"));
  EXPECT_THAT(mistake_of(with(kTorchrun, "MASTER_ADDR", "")), HasSubstr("MASTER_ADDR is empty"));
  EXPECT_THAT(mistake_of(without(kSlurm, "SLURM_NTASKS")), HasSubstr("SLURM_NTASKS is not set"));
  EXPECT_THAT(mistake_of(without(kSlurm, "SLURM_JOB_ID")), HasSubstr("SLURM_JOB_ID is not set"));
  EXPECT_THAT(mistake_of(without(kSlurm, "SLURM_LOCALID")), HasSubstr("SLURM_LOCALID is not set"));
  EXPECT_THAT(mistake_of(without(kSlurm, "SLURM_JOB_NODELIST")), HasSubstr("SLURM_JOB_NODELIST is not set"));
  EXPECT_THAT(mistake_of(with(kSlurm, "SLURM_PROCID", "4")), HasSubstr("SLURM_PROCID = 4 with SLURM_NTASKS = 4"));
  const std::string two = mistake_of({{"RANK", "x"}, {"WORLD_SIZE", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
  EXPECT_THAT(two, HasSubstr("RANK = 'x'"));
  EXPECT_THAT(two, HasSubstr("WORLD_SIZE = '0'"));
}

TEST(World, TheFirstHostOfAList) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_host("node[003-010,12]-ib,other"), "node003-ib");
  EXPECT_EQ(first_host("r[1-2]n[3,4]"), "r1n3");
  for (const char* wrong : {"", ",", "node[", "node[]", "node[x-y]", "a b"})
    EXPECT_THROW((void)first_host(wrong), WorldInvalid) << wrong;
}

}  // namespace
