#include "harness/watchdog.hpp"

#include <gtest/gtest.h>

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
