#include "base/clock.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace base {
namespace {

TEST(Clock, SecondsPass) {
  const auto moment = std::chrono::steady_clock::now();
  const double begin = steady_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double since = seconds_since(moment), between = steady_seconds() - begin;
  EXPECT_GE(since, 0.02);
  EXPECT_GE(between, 0.02);
  EXPECT_LT(since, 60) << "seconds, no smaller unit";
  EXPECT_LT(between, 60);
}

}  // namespace
}  // namespace base
