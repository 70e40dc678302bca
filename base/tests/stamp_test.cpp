#include "base/stamp.hpp"

#include <gtest/gtest.h>

#include <regex>

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::system_clock;

TEST(Stamp, TellsMillisecondsOfUtc) {
  EXPECT_EQ(base::timestamp(Clock::time_point{}), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(base::timestamp(Clock::time_point{milliseconds{1769903999007}}), "2026-01-31T23:59:59.007Z");
}

TEST(Stamp, RunsOfOneSecondDiffer) {
  const std::regex form("[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}");
  int alike = 0;
  for (int i = 0; i < 8; ++i) {
    const std::string one = base::new_run_id(), other = base::new_run_id();
    EXPECT_TRUE(std::regex_match(one, form)) << one;
    alike += one == other ? 1 : 0;
  }
  EXPECT_LT(alike, 4);
}

}  // namespace
