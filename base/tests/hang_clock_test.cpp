#include "base/hang_clock.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace base {
namespace {

using Verdict = HangClock::Verdict;

// Looks every second until `to`, where the CPU time is `cpu_s`: what the last look says.
Verdict look_until(HangClock& clock, double from, double to, double cpu_s) {
  for (double now = from + 1; now < to; now += 1) (void)clock.look(now, cpu_s);
  return clock.look(to, cpu_s);
}

constexpr HangClock::Limits kLimits{10, 4};

TEST(HangClock, SilentAndIdleIsAHang) {
  HangClock clock;
  clock.begin(kLimits, 0);
  for (int t = 1; t <= 10; ++t) EXPECT_EQ(clock.look(t, 5.0), Verdict::fine) << t;
  EXPECT_EQ(clock.look(11, 5.0), Verdict::idle);
}

TEST(HangClock, ASignOfLifeStartsTheClockAgain) {
  HangClock clock;
  clock.begin(kLimits, 0);
  clock.alive(8);
  EXPECT_EQ(look_until(clock, 0, 17, 0), Verdict::fine);
  EXPECT_EQ(clock.look(18.5, 0), Verdict::idle);
}

TEST(HangClock, WorkIsProgressForFourTimesAsLong) {
  HangClock clock;
  clock.begin(kLimits, 0);
  for (int t = 1; t <= 40; ++t) EXPECT_EQ(clock.look(t, t), Verdict::fine) << t;
  EXPECT_EQ(clock.look(41, 41), Verdict::busy);
}

TEST(HangClock, ABackgroundThreadsTicksAreNotWork) {
  HangClock clock;
  clock.begin(kLimits, 0);
  Verdict last = Verdict::fine;
  for (int t = 1; t <= 11; ++t) last = clock.look(t, 0.01 * t);  // 1 % of a core
  EXPECT_EQ(last, Verdict::idle);
}

TEST(HangClock, TimeInWhichTheWatcherDidNotRunDoesNotCount) {
  HangClock clock;
  clock.begin(kLimits, 0);
  EXPECT_EQ(look_until(clock, 0, 5, 3), Verdict::fine);
  EXPECT_EQ(clock.look(3605, 3), Verdict::fine) << "an hour's sleep is no hang";
  EXPECT_DOUBLE_EQ(clock.stood_still_s(), 3600);
  EXPECT_DOUBLE_EQ(clock.silent_s(3605), 5);
  EXPECT_EQ(look_until(clock, 3605, 3610, 3), Verdict::fine);
  EXPECT_EQ(clock.look(3611, 3), Verdict::idle) << "what was silent before and after it is a hang all the same";
}

TEST(HangClock, CpuTimeThatFallsIsMovement) {
  HangClock clock;
  clock.begin(kLimits, 0);
  EXPECT_EQ(look_until(clock, 0, 8, 50), Verdict::fine);
  EXPECT_EQ(look_until(clock, 8, 17, 20), Verdict::fine) << "a descendant has ended";
  EXPECT_EQ(look_until(clock, 17, 20, 20), Verdict::idle);
}

TEST(HangClock, ATimeThatIsNoNumberIsAHang) {
  HangClock clock;
  clock.begin(kLimits, 0);
  EXPECT_NE(clock.look(std::numeric_limits<double>::quiet_NaN(), 0), Verdict::fine);
}

}  // namespace
}  // namespace base
