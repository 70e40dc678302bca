#include "harness/watchdog.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace {

using harness::Watchdog;
using harness::WatchVerdict;

// Looks every second until `to`, where the CPU time is `cpu_s`: what the last look says.
WatchVerdict look_until(Watchdog& dog, double from, double to, double cpu_s) {
  for (double now = from + 1; now < to; now += 1) (void)dog.look(now, cpu_s);
  return dog.look(to, cpu_s);
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

TEST(Watchdog, WhatOthersKeptFromTheCpusHasMoreTime) {
  Watchdog talks;
  talks.begin({4, 20}, 0);
  for (int t = 1; t <= 50; ++t) {
    talks.heard(t);
    (void)talks.look(t, t);
  }
  EXPECT_TRUE(talks.beyond(50, 1));
  EXPECT_TRUE(talks.beyond(50, 2.4));
  EXPECT_FALSE(talks.beyond(50, 2.5));
  EXPECT_TRUE(talks.beyond(50, std::numeric_limits<double>::quiet_NaN()));
  Watchdog silent;
  silent.begin({4, 1000}, 0);
  for (int t = 1; t <= 16; ++t) EXPECT_EQ(silent.look(t, t), WatchVerdict::fine) << t;
  EXPECT_TRUE(silent.beyond(17, 1));
  EXPECT_FALSE(silent.beyond(17, 1.1));
}

TEST(Watchdog, WhatIsIdleAtItsLimitIsAHang) {
  Watchdog dog;
  dog.begin({10, 5}, 0);
  EXPECT_EQ(look_until(dog, 0, 6, 0), WatchVerdict::timeout);
  EXPECT_EQ(look_until(dog, 6, 11, 0), WatchVerdict::idle) << "more time would not help it";
}

TEST(Watchdog, BeginForgetsTheCaseBefore) {
  Watchdog dog;
  dog.begin({10, 20}, 0);
  for (int t = 1; t <= 19; ++t) EXPECT_EQ(dog.look(t, t), WatchVerdict::fine) << t;
  dog.begin({10, 20}, 19);
  EXPECT_EQ(look_until(dog, 19, 28, 19), WatchVerdict::fine);
  EXPECT_EQ(dog.look(29.5, 19), WatchVerdict::idle);
}

// Worker and watcher stopped together: docker pause, a laptop's sleep, a debugger.
TEST(Watchdog, TimeInWhichTheWatcherDidNotRunDoesNotCount) {
  Watchdog dog;
  dog.begin({10, 20}, 0);
  EXPECT_EQ(look_until(dog, 0, 5, 3), WatchVerdict::fine);
  EXPECT_EQ(dog.look(3605, 3), WatchVerdict::fine) << "an hour's sleep is neither a hang nor the absolute limit";
  EXPECT_DOUBLE_EQ(dog.stood_still_s(), 3600);
  EXPECT_DOUBLE_EQ(dog.silent_s(3605), 5);
  EXPECT_EQ(look_until(dog, 3605, 3610, 3), WatchVerdict::fine);
  EXPECT_EQ(dog.look(3611, 3), WatchVerdict::idle) << "what was silent before and after it is a hang all the same";
}

TEST(Watchdog, ACaseThatBeganAfterThePauseHasItsWholeTime) {
  Watchdog dog;
  dog.begin({10, 20}, 0);
  (void)dog.look(1, 0);
  dog.heard(100);
  dog.begin({10, 20}, 100);
  EXPECT_EQ(dog.look(100.5, 0), WatchVerdict::fine);
  EXPECT_EQ(look_until(dog, 100.5, 109.5, 0), WatchVerdict::fine);
  EXPECT_EQ(look_until(dog, 109.5, 111.5, 0), WatchVerdict::idle);
}

}  // namespace
