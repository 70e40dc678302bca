#include <gtest/gtest.h>

#include <cmath>

#include "nsa/train/trainer.hpp"

namespace {

using nsa::TrainConfig;
using nsa::train::learning_rate;

TrainConfig schedule(std::int64_t steps, std::int64_t warmup, double lr, double lr_min) {
  TrainConfig config;
  config.steps = steps;
  config.warmup_steps = warmup;
  config.lr = lr;
  config.lr_min = lr_min;
  return config;
}

TEST(LearningRate, TraceByHand) {
  // Warm-up 1/2, 1; then a cosine over steps 2..6 in quarters of pi: 1, 0.8536, 0.5, 0.1464, 0.
  const auto config = schedule(7, 2, 4.0, 0.0);
  const double expected[] = {2.0, 4.0, 4.0, 2.0 + M_SQRT2, 2.0, 2.0 - M_SQRT2, 0.0};
  for (int step = 0; step < 7; ++step) EXPECT_NEAR(learning_rate(config, step), expected[step], 1e-14) << step;
}

TEST(LearningRate, EndsAtItsMinimumAndStaysThere) {
  const auto config = schedule(10, 2, 1.0, 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(config, 2), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 9), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(config, 10), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1'000'000), 0.25);
  for (int step = 3; step < 10; ++step) EXPECT_LT(learning_rate(config, step), learning_rate(config, step - 1));
}

TEST(LearningRate, WithoutWarmUp) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(3, 0, 1.0, 0.0), 0), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(3, 0, 1.0, 0.0), 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(3, 0, 1.0, 0.0), 2), 0.0);
}

TEST(LearningRate, ShortRuns) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(1, 0, 1.0, 0.0), 0), 1.0);  // the only step is worth making
  EXPECT_DOUBLE_EQ(learning_rate(schedule(3, 2, 1.0, 0.0), 2), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(2, 2, 1.0, 0.0), 1), 1.0);  // warm-up only
  EXPECT_DOUBLE_EQ(learning_rate(schedule(2, 2, 1.0, 0.125), 5), 0.125);
}

TEST(LearningRate, NegativeStepIsRefused) {
  EXPECT_THROW((void)learning_rate(schedule(3, 0, 1.0, 0.0), -1), std::invalid_argument);
}

}  // namespace
