#include "nsa/train/run/hang_judge.hpp"

#include <gtest/gtest.h>

#include <optional>

namespace {

using nsa::train::Activity;
using nsa::train::HangJudge;
using nsa::train::Liveness;

// A process whose clock, work and progress a test makes up; looks every second.
struct Process {
  HangJudge judge{20};
  double now = 100, cpu = 3;
  Activity::Snapshot activity;

  // The first thing that is said within `seconds`, and when.
  std::optional<std::pair<Liveness, double>> live(double seconds, double cpu_share, bool progress) {
    std::optional<std::pair<Liveness, double>> said;
    for (double second = 1; second <= seconds; ++second) {
      now += 1;
      cpu += cpu_share;
      activity.step_s += 1;
      if (progress) ++activity.progress;
      const Liveness liveness = judge.look(now, cpu, activity);
      if (liveness != Liveness::fine && !said) said = {liveness, second};
    }
    return said;
  }
};

TEST(HangJudge, ProgressIsNeverAHang) {
  Process process;
  EXPECT_FALSE(process.live(500, 0.0, true));
  EXPECT_FALSE(process.live(500, 1.0, true));
}

TEST(HangJudge, SilentAndIdleIsHungAfterTheLimit) {
  Process process;
  EXPECT_FALSE(process.live(30, 1.0, true));
  const auto said = process.live(40, 0.0, false);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->first, Liveness::hung);
  EXPECT_GE(said->second, 20);
  EXPECT_LE(said->second, 23);
}

TEST(HangJudge, ABackgroundThreadsTicksAreNoWork) {
  Process process;
  (void)process.live(30, 1.0, true);
  EXPECT_EQ(process.live(40, 0.005, false)->first, Liveness::hung);
}

TEST(HangJudge, SilentButBusyIsHungMuchLater) {
  Process process;
  (void)process.live(30, 1.0, true);
  EXPECT_FALSE(process.live(190, 1.0, false));
  EXPECT_EQ(process.live(20, 1.0, false)->first, Liveness::hung);
}

TEST(HangJudge, SlowIsSaidOnceAStep) {
  Process process;
  process.activity = {"backward", 12, 0, 0, 2.0};
  const auto said = process.live(19, 1.0, false);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->first, Liveness::slow);
  EXPECT_EQ(said->second, 11);  // beyond five times the median
  EXPECT_FALSE(process.live(30, 1.0, true));
  process.activity.steps = 13;
  process.activity.step_s = 0;
  EXPECT_EQ(process.live(12, 1.0, true)->first, Liveness::slow);
}

TEST(HangJudge, ShortStepsMayStumbleAndTheFirstOnesTakeTheirTime) {
  Process process;
  process.activity = {"backward", 2, 0, 0, 0.0};  // no median yet
  EXPECT_FALSE(process.live(100, 1.0, true));
  process.activity = {"backward", 20, process.activity.progress, -0.5, 0.01};
  EXPECT_FALSE(process.live(1, 1.0, true));
}

TEST(HangJudge, AProcessThatWasStoppedIsNotHung) {
  Process process;
  (void)process.live(30, 1.0, true);
  process.now += 3600;  // SIGSTOP, or a sleeping machine
  EXPECT_FALSE(process.live(15, 0.0, false));
  EXPECT_EQ(process.live(15, 0.0, false)->first, Liveness::hung);
}

TEST(HangJudge, AShortLimitDoesNotMakeAPauseAHang) {
  Process process;
  process.judge = HangJudge(8);
  (void)process.live(30, 1.0, true);
  process.now += 9;
  EXPECT_FALSE(process.live(5, 0.0, false));
  EXPECT_EQ(process.live(5, 0.0, false)->first, Liveness::hung);
}

}  // namespace
