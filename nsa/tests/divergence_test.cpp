#include "nsa/train/divergence.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace {

using nsa::train::DivergenceGuard;
using testing::HasSubstr;

// A run of made-up losses, one a step.
struct Curve {
  explicit Curve(std::int64_t vocab = 256) : guard(vocab) {}
  void losses(int count, double loss, double norm = 1) {
    for (int i = 0; i < count; ++i) one(loss * (1 + 0.01 * std::sin(static_cast<double>(step))), norm);
  }
  void one(double loss, double norm = 1) {
    guard.step(++step, loss, norm);
    if (guard.alarm() && alarm_at < 0) alarm_at = step;
  }
  DivergenceGuard guard;
  std::int64_t step = 0, alarm_at = -1;
};

TEST(DivergenceGuard, ALossFarAboveTheUniformOneIsDivergence) {
  Curve run;
  run.losses(5, 5.6);
  run.losses(11, 40);
  EXPECT_FALSE(run.guard.alarm());
  run.losses(1, 40);
  ASSERT_TRUE(run.guard.alarm());
  EXPECT_THAT(*run.guard.alarm(), HasSubstr("in 12 of the last 16 steps, since step 6"));
  EXPECT_EQ(run.guard.evidence()["since_step"], 6);
}

TEST(DivergenceGuard, ALossThatLosesWhatWasLearnedIsDivergence) {
  Curve run;
  run.losses(20, 5.5);
  run.losses(200, 1.5);
  run.losses(30, 3.5);  // other data, perhaps: half of it is still there
  EXPECT_FALSE(run.guard.alarm());
  run.losses(12, 5.2);  // below ln 256
  EXPECT_TRUE(run.guard.alarm());
}

TEST(DivergenceGuard, SpikesAndAShortStumbleAreNone) {
  Curve run;
  for (int i = 0; i < 100; ++i) {
    run.losses(3, 2);
    run.losses(4, 30);
    run.losses(4, 2);
  }
  EXPECT_EQ(run.alarm_at, -1);
  Curve start;
  start.losses(1, 5.6);
  start.losses(11, 9);  // no warm-up
  start.losses(50, 4);
  EXPECT_EQ(start.alarm_at, -1);
}

TEST(DivergenceGuard, AModelThatNeverLearnsHasNotDiverged) {
  Curve run;
  run.losses(1000, std::log(256.0));
  EXPECT_EQ(run.alarm_at, -1);
  Curve memorised;  // losses near zero, with a scatter of many times themselves
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) memorised.one(1e-4 * static_cast<double>(random() % 1000));
  EXPECT_EQ(memorised.alarm_at, -1);
}

TEST(DivergenceGuard, TheNormThatRoseFirstIsInTheEvidence) {
  Curve run;
  run.losses(40, 3, 1);
  run.losses(5, 3, 50);
  run.losses(12, 30, 50);
  EXPECT_EQ(run.guard.evidence()["grad_norm_since_step"], 41);
  EXPECT_THAT(run.guard.alarm().value(), HasSubstr("norm is out of its range since step 41"));
  Curve moved;  // to another level, long ago
  moved.losses(40, 3, 1);
  moved.losses(100, 3, 50);
  EXPECT_TRUE(moved.guard.evidence()["grad_norm_since_step"].is_null());
  Curve calm;
  calm.losses(40, 3, 1);
  calm.losses(12, 30, 1);
  EXPECT_TRUE(calm.guard.evidence()["grad_norm_since_step"].is_null());
}

TEST(DivergenceGuard, GoesOnFromItsStateAndAfterAnAlarmCountsAnew) {
  Curve whole, first;
  const auto begin = [](Curve& run) {
    run.losses(80, 3);
    run.losses(7, 30, 90);
  };
  begin(whole);
  begin(first);
  Curve second;
  second.step = first.step;
  second.guard.restore(nlohmann::json::parse(first.guard.state().dump()));
  whole.losses(5, 30);
  second.losses(5, 30);
  EXPECT_EQ(whole.alarm_at, second.alarm_at);
  EXPECT_GT(second.alarm_at, 0);
  EXPECT_EQ(whole.guard.state(), second.guard.state());

  Curve third;
  third.step = whole.step;
  third.guard.restore(whole.guard.state());  // the file was removed: somebody wants to go on
  EXPECT_FALSE(third.guard.alarm());
  third.losses(11, 30);
  EXPECT_FALSE(third.guard.alarm());
  third.losses(1, 30);
  EXPECT_TRUE(third.guard.alarm());
  third.guard.restore({});  // a checkpoint of a build that had no guard
  EXPECT_EQ(third.guard.state(), DivergenceGuard(256).state());
}

}  // namespace
