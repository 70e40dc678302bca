// The step that a CUDA graph can hold, with several ranks: on a CPU it runs one operation after another, sums included.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "nsa/tests/needs_gloo.hpp"
#include "nsa/train/run/tests/ranks_runner.hpp"

namespace {

using namespace nsa::train::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const Arguments kCaptured = {"--set", "train.cuda_graph=true"}, kOrdinary = {"--set", "train.cuda_graph=false"};

// Two numbers are summed exactly the same way in any buffer; of three, the order may differ.
TEST(NsaTrainRanks, TheCapturedStepIsTheOrdinaryOneOfAsManyRanks) {
  NSA_NEEDS_GLOO();
  const Place captured, ordinary, one;
  const auto twelve = [&](const Place& place, const Arguments& how, const Arguments& more) {
    Outcome outcome = place.train(with(with(kTwelveRows, how), more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  };
  const Outcome two = twelve(captured, kCaptured, {"--steps", "5", "--nproc", "2"});
  EXPECT_EQ(two.last_line(), twelve(ordinary, kOrdinary, {"--steps", "5", "--nproc", "2"}).last_line());
  constexpr std::array<std::size_t, 3> kExact = {1, 3, 8};  // loss, norm, tokens
  const auto left = table(captured.run()), right = table(ordinary.run());
  ASSERT_EQ(left.size(), 5U);
  ASSERT_EQ(right.size(), 5U);
  for (std::size_t i = 0; i < left.size(); ++i)
    for (const std::size_t column : kExact) EXPECT_EQ(left[i][column], right[i][column]) << i << ", " << column;
  twelve(captured, kCaptured, {"--steps", "7", "--nproc", "3", "--resume"});
  twelve(captured, kOrdinary, {"--steps", "8", "--nproc", "2", "--resume"});
  twelve(one, kCaptured, {"--steps", "8"});
  expect_same_run(one, captured, 8);
}

// Many sums while backward goes on, with accumulated batches: of two ranks the same bits again. The steps that warm up
// sum afterwards, so the fifth is the second of the others.
TEST(NsaTrainRanks, ACapturedStepInManyBucketsIsTheOrdinaryOne) {
  NSA_NEEDS_GLOO();
  const Place captured, ordinary;
  const Arguments more = {"--steps", "6", "--nproc", "2", "--set", "train.accumulate_grad_batches=2"};
  const Outcome many = captured.train(with(kCaptured, more), {.environment = {{"NPROC_SUM_BUCKET_KB", "4"}}});
  ASSERT_EQ(many.code, 0) << many.err;
  EXPECT_EQ(many.last_line(), ordinary.train(with(kOrdinary, more)).last_line());
}

TEST(NsaTrainRanks, ASizeOfSumsThatIsNoneIsRefused) {
  const Place place;
  const Outcome outcome =
      place.train(with(kCaptured, {"--nproc", "2"}), {.environment = {{"NPROC_SUM_BUCKET_KB", "x"}}});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("NPROC_SUM_BUCKET_KB is 'x', allowed is an integer from 0 to"));
}

// The first step of each pass has whole batches, the second has not: captured and ordinary ones take turns.
TEST(NsaTrainRanks, CapturedStepsAndSmallBatchesTakeTurns) {
  NSA_NEEDS_GLOO();
  const Place one, several;
  std::ofstream(one.file("short.txt")) << std::string(32 * 4 * 2 + 32 * 1 + 9, 'a') + "bcd";
  const Arguments short_data =
      with(kCaptured, {"--data", one.file("short.txt").string(), "--set", "train.batch_size=4", "--set",
                       "train.eval_every=0", "--set", "train.validation_share=0", "--set", "train.epochs=3"});
  const Outcome ends = one.train(short_data);
  ASSERT_EQ(ends.code, 3) << ends.err;
  const Outcome outcome = several.train(with(short_data, {"--nproc", "4"}));
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  const auto rows = table(several.run());
  ASSERT_GE(rows.size(), 4U);
  EXPECT_NE(rows[1][8] - rows[0][8], rows[2][8] - rows[1][8]) << "steps of another size";
  expect_same_run(one, several, rows.size());
}

TEST(NsaTrainRanks, ANanInACapturedStepIsNamedAndNothingIsUpdated) {
  NSA_NEEDS_GLOO();
  const Place place;
  const Outcome outcome =
      place.train(with(kCaptured, {"--nproc", "2"}),
                  {.plant = "nan-gradient@6", .environment = {{"FAULT_RANK", "1"}, {"NPROC_SUM_BUCKET_KB", "4"}}});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  const auto halt = halt_of(place);
  EXPECT_EQ(halt["step"], 3);
  EXPECT_EQ(halt["anomaly"], "nan_gradient");
  EXPECT_EQ(halt["checkpoint_step"], 2);
  EXPECT_EQ(halt["rank"], 1);
  EXPECT_EQ(halt["parameter"], "layers.0.norm_mlp.weight");
  EXPECT_THAT(halt["reason"].get<std::string>(), HasSubstr("(first on rank 1)"));
  fs::remove(place.run() / ".HALT");
  const Outcome resumed = place.train(with(kOrdinary, {"--nproc", "2", "--resume", "--steps", "3"}));
  const Place healthy;
  EXPECT_EQ(resumed.last_line(), healthy.train(with(kOrdinary, {"--nproc", "2", "--steps", "3"})).last_line());
}

TEST(NsaTrainRanks, CapturedStepsStopTogetherAndALostRankEndsThem) {
  NSA_NEEDS_GLOO();
  for (const bool killed : {false, true}) {
    const Place place;
    Child child(place.options(with(kCaptured, {"--nproc", "2", "--steps", "100000", "--set", "train.epochs=0"})),
                place.file("child"));
    wait_for_rows(place, 4);
    if (killed)
      ::kill(process_of(place, 1), SIGKILL);
    else
      std::ofstream(place.run() / ".HALT") << "enough";
    const Outcome outcome = child.wait();
    EXPECT_EQ(outcome.code, killed ? 13 : 5) << outcome.err;
    if (killed) {
      EXPECT_THAT(outcome.err, AllOf(HasSubstr("was killed by SIGKILL"), HasSubstr("--resume goes on from there")));
      EXPECT_THAT(names_in(place.run() / "checkpoints"), Not(IsEmpty()));
    } else {
      expect_all_stopped_at_one_step(place, outcome);
    }
    EXPECT_THAT(left_of(place), IsEmpty());
  }
}

// In step 4: in the steps before, the ranks ask each other before they sum.
TEST(NsaTrainRanks, AHangBeforeTheSumsOfACapturedStepIsNamed) {
  NSA_NEEDS_GLOO();
  const Place place;
  const Outcome outcome = place.train(with(kCaptured, {"--nproc", "2", "--set", "train.hang_timeout_s=5"}),
                                      {.plant = "hang@8", .environment = {{"FAULT_RANK", "1"}}});
  EXPECT_EQ(outcome.code, 6) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("rank 0 waited"), HasSubstr("'gradients'"),
                    HasSubstr("rank 1 is outside of any collective"), HasSubstr("in its phase 'backward'")));
  EXPECT_THAT(left_of(place), IsEmpty());
}

// Its gradients are in the last bucket but some: the others were summed, and are not waited for.
TEST(NsaTrainRanks, AHangAmongTheSumsOfACapturedStepIsNamed) {
  NSA_NEEDS_GLOO();
  const Place place;
  const Outcome outcome =
      place.train(with(kCaptured, {"--nproc", "2", "--set", "train.hang_timeout_s=5"}),
                  {.plant = "hang@9", .environment = {{"FAULT_RANK", "1"}, {"NPROC_SUM_BUCKET_KB", "4"}}});
  EXPECT_EQ(outcome.code, 6) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 0 waited"), HasSubstr("'gradients bucket "),
                                 HasSubstr("rank 1 is outside of any collective; its last was"),
                                 HasSubstr("'gradients bucket "), HasSubstr("in its phase")));
  EXPECT_THAT(left_of(place), IsEmpty());
}

// Of the third step, the rehearsal, all ranks hear whether it can be captured.
TEST(NsaTrainRanks, WhatOneRankCannotCaptureIsRefusedByAll) {
  NSA_NEEDS_GLOO();
  const Place place;
  const Outcome outcome =
      place.train(with(kCaptured, {"--nproc", "2"}), {.plant = "unsupported@6", .environment = {{"FAULT_RANK", "1"}}});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  for (const char* rank : {"rank 0: error: ", "rank 1: error: "})
    EXPECT_THAT(outcome.err, HasSubstr(std::string(rank) + "this rank alone cannot (rank 1)"));
  EXPECT_THAT(left_of(place), IsEmpty());
}

}  // namespace
