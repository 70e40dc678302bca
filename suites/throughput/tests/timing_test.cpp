#include "suites/throughput/timing.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace suites::throughput_cases {
namespace {

using namespace std::chrono_literals;

TEST(Timing, OneSampleARepeatAfterTheWarmUp) {
  int calls = 0;
  const auto seconds = time_repeats("count", at::kCPU, {.warm_up = 2, .repeats = 5}, [&] { ++calls; });
  EXPECT_EQ(seconds.size(), 5U);
  EXPECT_EQ(calls, 7);
}

TEST(Timing, SamplesAreTheTimeOfTheWork) {
  const auto seconds =
      time_repeats("sleep", at::kCPU, {.warm_up = 1, .repeats = 3}, [] { std::this_thread::sleep_for(5ms); });
  for (const double s : seconds) EXPECT_GE(s, 0.005);  // a sleep never ends early
}

TEST(Timing, ASlowSubjectIsRepeatedLessOftenButNeverTooRarely) {
  const TimingPlan plan{.warm_up = 1, .repeats = 50, .least = 3, .budget_s = 0.001};
  EXPECT_EQ(time_repeats("slow", at::kCPU, plan, [] { std::this_thread::sleep_for(2ms); }).size(), 3U);
}

TEST(Timing, WhatIsSlowBeyondPatienceIsTimedOnce) {
  const TimingPlan plan{.warm_up = 1, .repeats = 5, .least = 5, .budget_s = 0.001, .patience_s = 0.002};
  EXPECT_EQ(time_repeats("very slow", at::kCPU, plan, [] { std::this_thread::sleep_for(2ms); }).size(), 1U);
}

TEST(Timing, TwoPiecesOfWorkTakeTurnsSoThatADriftMeetsBothAlike) {
  std::string order;
  const Abba times = time_abba(
      at::kCPU, 3, [&] { order += 'a'; }, [&] { order += 'b'; });
  EXPECT_EQ(order, "abbabaababba");
  EXPECT_EQ(times.a.size(), 6U);
  EXPECT_EQ(times.b.size(), 6U);
  EXPECT_EQ(times.in_order.size(), 12U);
}

TEST(Timing, SaysNothingOnStdoutOrStderr) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  (void)time_repeats("quiet", at::kCPU, {}, [] {});
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Timing, AnExceptionComesThroughAndTheNextTimingWorks) {
  int calls = 0;
  const auto fail_third = [&] {
    if (++calls == 3) throw std::runtime_error("step 3 failed");
  };
  EXPECT_THROW((void)time_repeats("throws", at::kCPU, {.warm_up = 1, .repeats = 5}, fail_third), std::runtime_error);
  EXPECT_EQ(calls, 3) << "nothing runs after the failure";
  EXPECT_EQ(time_repeats("after", at::kCPU, {.warm_up = 1, .repeats = 5}, [] {}).size(), 5U);
}

}  // namespace
}  // namespace suites::throughput_cases
