// Several processes that train as one: nsa-train --nproc on the CPU, against one process, and what stops them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>
#include <tuple>

#include "nsa/tests/needs_gloo.hpp"
#include "nsa/train/run/tests/ranks_runner.hpp"

namespace {

using namespace nsa::train::testing;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> left_in_the_end(const Place& place) {
  for (int i = 0; i < 100 && !left_of(place).empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  return left_of(place);
}

TEST(NsaTrainRanks, TwoThenThreeTrainAsOne) {
  NSA_NEEDS_GLOO();
  const Place one, several;
  ASSERT_EQ(one.train(with(kTwelveRows, {"--steps", "8"})).code, 0);
  const Outcome two = several.train(with(kTwelveRows, {"--steps", "5", "--nproc", "2"}));
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(two.err, HasSubstr("shared by 2 ranks (gloo)"));
  const Outcome three = several.train(with(kTwelveRows, {"--steps", "8", "--nproc", "3", "--resume"}));
  ASSERT_EQ(three.code, 0) << three.err;
  EXPECT_THAT(three.out, StartsWith("final: step=8 ")) << "once, by the first rank";
  EXPECT_EQ(std::count(three.out.begin(), three.out.end(), '\n'), 1);
  EXPECT_THAT(three.err, AllOf(HasSubstr("goes on from step 5"), HasSubstr("the number of ranks was 2 and is 3 now")));
  expect_same_run(one, several, 8);
  EXPECT_TRUE(fs::exists(several.run() / "ranks" / "rank_2" / "heartbeat.jsonl"));
  const Outcome alone = several.train(with(kTwelveRows, {"--steps", "8", "--resume"}));
  EXPECT_EQ(alone.last_line(), three.last_line()) << "the same file for every number of ranks";
  EXPECT_EQ(several.train(with(kTwelveRows, {"--steps", "1", "--force"})).code, 0);
  EXPECT_FALSE(fs::exists(several.run() / "ranks")) << "removed with the run";
}

// 4 rows a batch, then fewer, then one that is shorter: some ranks have none.
TEST(NsaTrainRanks, TheSmallBatchesAtTheEndOfTheData) {
  NSA_NEEDS_GLOO();
  const Place one, several;
  std::ofstream(one.file("short.txt")) << std::string(32 * 4 * 2 + 32 * 1 + 9, 'a') + "bcd";
  const Arguments short_data = {"--data", one.file("short.txt").string(), "--set", "train.batch_size=4",
                                "--set",  "train.eval_every=0",           "--set", "train.validation_share=0"};
  const Outcome ends = one.train(short_data);
  ASSERT_EQ(ends.code, 3) << ends.err;
  const Outcome outcome = several.train(with(short_data, {"--nproc", "4"}));
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  expect_same_run(one, several, 2);
}

TEST(NsaTrainRanks, PackedBatchesAreDealtWhole) {
  NSA_NEEDS_GLOO();
  const Place one, several;
  const Arguments packed = {"--set", "train.packed=true", "--set", "train.batch_size=1", "--steps", "4"};
  ASSERT_EQ(one.train(packed).code, 0);
  const Outcome outcome = several.train(with(packed, {"--nproc", "2"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_same_run(one, several, 4);
}

TEST(NsaTrainRanks, AHaltFileAndASignalStopAllAtTheSameStep) {
  NSA_NEEDS_GLOO();
  for (const bool by_file : {true, false}) {
    const Place place;
    Child child(place.options({"--nproc", "2", "--steps", "100000", "--set", "train.epochs=0"}), place.file("child"));
    wait_for_rows(place, 2);
    if (by_file)
      std::ofstream(place.run() / ".HALT") << "enough";
    else
      ::kill(process_of(place, 1), SIGHUP);
    const Outcome outcome = child.wait();
    EXPECT_EQ(outcome.code, by_file ? 5 : 143) << outcome.err;
    EXPECT_THAT(outcome.last_line(), StartsWith("stopped: step="));
    expect_all_stopped_at_one_step(place, outcome);
    EXPECT_THAT(left_of(place), IsEmpty());
  }
}

TEST(NsaTrainRanks, AKilledRankEndsAllAndTheStepsAreSaved) {
  NSA_NEEDS_GLOO();
  const Place place;
  Child child(
      place.options({"--nproc", "3", "--steps", "100000", "--set", "train.epochs=0", "--set", "train.batch_size=3"}),
      place.file("child"));
  wait_for_rows(place, 2);
  ::kill(process_of(place, 2), SIGKILL);
  const Outcome outcome = child.wait();
  EXPECT_EQ(outcome.code, 13) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 0: error: rank 2 (pid "), HasSubstr("was killed by SIGKILL"),
                                 HasSubstr("--resume goes on from there")));
  EXPECT_THAT(names_in(place.run() / "checkpoints"), Not(IsEmpty()));
  EXPECT_THAT(left_of(place), IsEmpty());
}

TEST(NsaTrainRanks, AKilledStarterLeavesNobody) {
  NSA_NEEDS_GLOO();
  const Place place;
  Child child(place.options({"--nproc", "2", "--steps", "100000", "--set", "train.epochs=0"}), place.file("child"));
  wait_for_rows(place, 2);
  child.send(SIGKILL);
  EXPECT_EQ(child.wait().code, 128 + SIGKILL);
  EXPECT_THAT(left_in_the_end(place), IsEmpty());
  EXPECT_THAT(names_in(place.run() / "checkpoints"), Not(IsEmpty())) << "the ranks stop as after SIGTERM";
  EXPECT_THAT(content(place.file("child.stdout")) + content(place.file("child.stderr")),
              AnyOf(HasSubstr("reason=starter_died"), HasSubstr("the starter, which served it, has died")));
}

// The starter of two ranks is killed after so many rows; they end, and say why.
void kill_starter(const Place& place, const char* log_every, std::size_t rows) {
  Child child(place.options({"--nproc", "2", "--steps", "100000", "--save-every", "0", "--set", "train.epochs=0",
                             "--set", std::string("train.log_every=") + log_every, "--set", "train.eval_every=0"}),
              place.file("child"));
  wait_for_rows(place, rows);
  child.send(SIGKILL);
  (void)child.wait();
  EXPECT_THAT(left_in_the_end(place), IsEmpty());
  EXPECT_THAT(content(place.file("child.stdout")), HasSubstr("reason=starter_died"));
}

// Between two steps they learn it by their signal; where one of them asks the store before that, by the end of its
// connection.
TEST(NsaTrainRanks, ThatTheStarterDiedIsTheReason) {
  NSA_NEEDS_GLOO();
  const Place place;
  kill_starter(place, "100000", 1);
  EXPECT_THAT(content(place.file("child.stderr")), HasSubstr("the process that started the ranks (--nproc) has died"));
}

// With a row a step somebody always asks the store, which has gone with the starter.
TEST(NsaTrainRanks, AlsoWhereTheStoreIsAskedJustThen) {
  NSA_NEEDS_GLOO();
  const Place place;
  kill_starter(place, "1", 2);
  EXPECT_THAT(content(place.file("child.stderr")), Not(HasSubstr("error:")));
}

// Its store is there and says nothing. The ranks need it at each row.
TEST(NsaTrainRanks, AStoppedStarterIsNamed) {
  NSA_NEEDS_GLOO();
  const Place place;
  Child child(place.options(
                  {"--nproc", "2", "--steps", "100000", "--set", "train.epochs=0", "--set", "train.hang_timeout_s=4"}),
              place.file("child"));
  wait_for_rows(place, 2);
  child.send(SIGSTOP);
  EXPECT_TRUE(child.says("which serves it, is stopped (SIGSTOP)"));
  child.send(SIGCONT);
  const Outcome outcome = child.wait();
  EXPECT_EQ(outcome.code, 6) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("gives no answer: the starter (process "), HasSubstr("in collective")));
  EXPECT_THAT(left_of(place), IsEmpty());
}

TEST(NsaTrainRanks, OtherArgumentsOfARankAreRefusedBeforeAnythingIsWritten) {
  NSA_NEEDS_GLOO();
  const Place place;
  int port = 20'000 + ::getpid() % 10'000;  // below those that are given to whoever asks for any
  for (const auto& [option, value, words] : {std::tuple{"--out", place.file("elsewhere").string(), "folder (--out)"},
                                             {"--steps", "7", "last step (--steps)"}}) {
    RunOptions zero = place.options({"--steps", "6"});
    zero.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}};
    zero.environment["MASTER_PORT"] = std::to_string(++port);
    RunOptions one = zero;
    one.environment["RANK"] = "1";
    *(std::find(one.arguments.begin(), one.arguments.end(), option) + 1) = value;
    Child first(zero, place.file("zero")), second(one, place.file("one"));
    for (Child* child : {&first, &second}) {
      const Outcome outcome = child->wait();
      EXPECT_EQ(outcome.code, 2) << outcome.err;
      EXPECT_THAT(outcome.err, AllOf(HasSubstr(words), HasSubstr("rank 1"), HasSubstr(value)));
    }
    EXPECT_FALSE(fs::exists(place.run()) || fs::exists(place.file("elsewhere"))) << option;
  }
}

// Two accumulated batches a step, and the rehearsal: the sixth pass is of step 3.
TEST(NsaTrainRanks, ANanOnOneRankIsNamed) {
  NSA_NEEDS_GLOO();
  for (const std::string fault : {"nan-gradient", "nan-loss"}) {
    const Place place;
    const bool loss = fault == "nan-loss";
    const Outcome outcome =
        place.train({"--nproc", "2"}, {.plant = fault + (loss ? "@5" : "@6"), .environment = {{"FAULT_RANK", "1"}}});
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    const auto halt = halt_of(place);
    EXPECT_EQ(halt["step"], 3);
    EXPECT_EQ(halt["anomaly"], loss ? "nan_loss" : "nan_gradient");
    EXPECT_EQ(halt["checkpoint_step"], 2);
    EXPECT_EQ(halt["rank"], 1);
    EXPECT_THAT(halt["reason"].get<std::string>(), HasSubstr("(first on rank 1)"));
    EXPECT_FALSE(halt["parameter"].get<std::string>().empty());
    if (!loss) {
      EXPECT_EQ(halt["parameter"], "layers.0.norm_mlp.weight");
    }
  }
}

TEST(NsaTrainRanks, AHangEndsWithTheCollectiveAndTheStacksOfAll) {
  NSA_NEEDS_GLOO();
  const Place place;
  const Outcome outcome = place.train({"--nproc", "2", "--set", "train.hang_timeout_s=5"},
                                      {.plant = "hang@6", .environment = {{"FAULT_RANK", "1"}}});
  EXPECT_EQ(outcome.code, 6) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("rank 0 waited"), HasSubstr("in collective"), HasSubstr("'gradients bucket 0'"),
                    HasSubstr("rank 1 is outside of any collective"), HasSubstr("in its phase 'backward'")));
  EXPECT_THAT(content(place.run() / "stacks_ranks.txt"),
              AllOf(HasSubstr("==== rank 0"), HasSubstr("==== rank 1"), HasSubstr("pause")));
  EXPECT_THAT(left_of(place), IsEmpty());
}

TEST(NsaTrainRanks, OtherBitsInAWeightAreFound) {
  NSA_NEEDS_GLOO();
  const Place place;
  const Outcome outcome = place.train({"--nproc", "2"}, {.plant = "weights@2", .environment = {{"FAULT_RANK", "1"}}});
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("weights after step 2"), HasSubstr("layers.0.norm_mlp.weight"), HasSubstr("rank 1")));
}

TEST(NsaTrainRanks, WhatCannotBeIsRefusedByName) {
  const Place place;
  const auto refused = [&](const Arguments& more, const std::map<std::string, std::string>& environment,
                           const std::string& words) {
    const Outcome outcome = place.train(more, {.environment = environment});
    EXPECT_EQ(outcome.code, 2) << words << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words));
    EXPECT_FALSE(fs::exists(place.run())) << words;
  };
  refused({"--nproc", "3"}, {},
          "train.batch_size = 2: 3 ranks share the rows of a batch of a step evenly, so it must be a multiple of 3: 3");
  refused({"--nproc", "0"}, {}, "--nproc");
  refused({}, {{"RANK", "0"}}, "RANK is '0', and WORLD_SIZE is not set");
  refused({}, {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"}},
          "SLURM_PROCID is '1', and SLURM_JOB_ID is not set");  // as nsa-validate (merge_verb_test)
  refused({}, {{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}}, "SLURM_STEP_ID is '0', and SLURM_PROCID is not set");
  refused({}, {{"RANK", "0"}, {"WORLD_SIZE", "0"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "x"}},
          "WORLD_SIZE is '0', allowed is an integer from 1 to");
  refused({"--nproc", "2"},
          {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}},
          "RANK=0 WORLD_SIZE=4 already say(s)");
}

// It would wait for ranks that nobody starts.
TEST(NsaTrainRanks, AScriptOfSbatchWithoutSrunTrainsAloneAndSaysSo) {
  const Place place;
  const Outcome outcome = place.train({"--steps", "1"}, {.environment = {{"SLURM_PROCID", "0"},
                                                                         {"SLURM_NTASKS", "2"},
                                                                         {"SLURM_LOCALID", "0"},
                                                                         {"SLURM_JOB_ID", "7"},
                                                                         {"SLURM_JOB_NODELIST", "localhost"}}});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("nsa-train: note: SLURM_NTASKS is '2', and SLURM_STEP_ID is not set"));
}

// Rank 0 removes so much that the others would long have written into what it removes.
TEST(NsaTrainRanks, ForceRemovesARunBeforeAnyRankWrites) {
  NSA_NEEDS_GLOO();
  const Place place;
  const fs::path ranks = place.run() / "ranks" / "rank_1";
  ASSERT_EQ(place.train({"--nproc", "2", "--steps", "1"}).code, 0);
  for (int step = 0; step < 5000; ++step)
    std::ofstream(place.run() / ("stacks_slow_step_" + std::to_string(step) + ".txt")) << "old";
  const Outcome outcome = place.train({"--nproc", "2", "--steps", "2", "--force"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.last_line(), StartsWith("final: step=2 "));
  EXPECT_FALSE(fs::exists(place.run() / "stacks_slow_step_0.txt"));
  EXPECT_EQ(records(ranks, "boot").size(), 1U) << "the old run's is gone";
  EXPECT_EQ(records(ranks, "finished").size(), 1U);
}

// Also without a starter: each rank then has an exit code that somebody sees.
TEST(NsaTrainRanks, AFolderThatRankZeroRefusesEndsAllWithItsReason) {
  NSA_NEEDS_GLOO();
  const Place place;
  ASSERT_EQ(place.train({"--steps", "1"}).code, 0);
  RunOptions zero = place.options({"--steps", "2"});
  zero.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}};
  zero.environment["MASTER_PORT"] = std::to_string(10'000 + ::getpid() % 10'000);
  RunOptions one = zero;
  one.environment["RANK"] = "1";
  Child first(zero, place.file("zero")), second(one, place.file("one"));
  const Outcome of_zero = first.wait(), of_one = second.wait();
  EXPECT_EQ(of_zero.code, 2) << of_zero.err;
  EXPECT_EQ(of_one.code, 2) << of_one.err;
  EXPECT_THAT(of_zero.err, HasSubstr("holds a run: --resume goes on with it"));
  EXPECT_THAT(of_one.err, AllOf(HasSubstr("rank 1: error: rank 0 has ended: "), HasSubstr("holds a run: --resume")));
  EXPECT_FALSE(fs::exists(place.run() / "ranks"));
}

// Of a variable that only matters to captured sums, before the first of them; of a flag that nobody knows.
TEST(NsaTrainRanks, WhatOneRankAloneHasInItsEnvironmentIsTold) {
  NSA_NEEDS_GLOO();
  const Place place;
  int port = 12'000 + ::getpid() % 8'000;
  for (const bool refused : {true, false}) {
    RunOptions zero = place.options({"--steps", "1"});
    zero.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"NSA_FUSED_FOO", "1"}};
    zero.environment["MASTER_PORT"] = std::to_string(++port);
    RunOptions one = zero;
    one.environment["RANK"] = "1";
    one.environment[refused ? "NPROC_SUM_BUCKET_KB" : "NSA_FUSED_BAR"] = "4";
    Child first(zero, place.file("zero")), second(one, place.file("one"));
    const Outcome of_zero = first.wait(), of_one = second.wait();
    for (const Outcome* outcome : {&of_zero, &of_one}) {
      EXPECT_EQ(outcome->code, refused ? 2 : 0) << outcome->err;
      if (refused) {
        EXPECT_THAT(outcome->err, HasSubstr("NPROC_SUM_BUCKET_KB of rank 1 is 4, of the others 81920"));
      }
    }
    if (refused) continue;
    EXPECT_THAT(of_zero.err, HasSubstr("nsa-train: NSA_FUSED_FOO is no flag of this program"));
    EXPECT_THAT(of_one.err, AllOf(HasSubstr("nsa-train: rank 1: NSA_FUSED_BAR is no flag of this program"),
                                  Not(HasSubstr("NSA_FUSED_FOO"))));
  }
}

TEST(NsaTrainRanks, AFolderThatHoldsARunIsRefusedOnce) {
  NSA_NEEDS_GLOO();
  const Place place;
  ASSERT_EQ(place.train({"--nproc", "2", "--steps", "1"}).code, 0);
  const Outcome outcome = place.train({"--nproc", "2", "--steps", "1"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("holds a run: --resume goes on with it"));
}

}  // namespace
