#include "harness/watchdog.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace {

using harness::Watchdog;
using harness::WatchVerdict;

constexpr harness::WatchLimits kLimits{10, 1000};

TEST(Watchdog, SilentAndIdleIsAHang) {
  Watchdog dog;
  dog.begin(kLimits, 0);
  for (int t = 1; t <= 10; ++t) EXPECT_EQ(dog.look(t, 5.0), WatchVerdict::fine) << t;
  EXPECT_EQ(dog.look(11, 5.0), WatchVerdict::idle);
}

TEST(Watchdog, AWordStartsTheClockAgain) {
  Watchdog dog;
  dog.begin(kLimits, 0);
  dog.heard(8);
  EXPECT_EQ(dog.look(17, 0), WatchVerdict::fine);
  EXPECT_EQ(dog.look(18.5, 0), WatchVerdict::idle);
}

TEST(Watchdog, WorkIsProgressForFourTimesAsLong) {
  Watchdog dog;
  dog.begin(kLimits, 0);
  for (int t = 1; t <= 40; ++t) EXPECT_EQ(dog.look(t, t), WatchVerdict::fine) << t;
  EXPECT_EQ(dog.look(41, 41), WatchVerdict::busy);
}

TEST(Watchdog, ABackgroundThreadsTicksAreNotWork) {
  Watchdog dog;
  dog.begin(kLimits, 0);
  WatchVerdict last = WatchVerdict::fine;
  for (int t = 1; t <= 11; ++t) last = dog.look(t, 0.01 * t);  // 1 % of a core
  EXPECT_EQ(last, WatchVerdict::idle);
}

TEST(Watchdog, WordsDoNotHelpBeyondTheAbsoluteLimit) {
  Watchdog dog;
  dog.begin({10, 20}, 0);
  for (int t = 1; t <= 20; ++t) {
    dog.heard(t);
    EXPECT_EQ(dog.look(t, t), WatchVerdict::fine);
  }
  dog.heard(20.5);
  EXPECT_EQ(dog.look(20.5, 20.5), WatchVerdict::timeout);
}

TEST(Watchdog, BeginForgetsTheCaseBefore) {
  Watchdog dog;
  dog.begin({10, 20}, 0);
  EXPECT_EQ(dog.look(9, 9), WatchVerdict::fine);
  EXPECT_EQ(dog.look(19, 19), WatchVerdict::fine);
  dog.begin({10, 20}, 19);
  EXPECT_EQ(dog.look(28, 19), WatchVerdict::fine);
  EXPECT_EQ(dog.look(29.5, 19), WatchVerdict::idle);
}

}  // namespace
