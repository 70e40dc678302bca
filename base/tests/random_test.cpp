#include "base/random.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace base {
namespace {

// The numbers that its authors' program prints for the seed 1234567.
TEST(Random, IsSplitmix64) {
  constexpr std::array<std::uint64_t, 5> kWanted = {6457827717110365317U, 3203168211198807973U, 9817491932198370423U,
                                                    4593380528125082431U, 16408922859458223821U};
  std::uint64_t state = 1234567;
  for (const std::uint64_t wanted : kWanted) EXPECT_EQ(next_random(state), wanted);
  EXPECT_EQ(mixed(1234567 + kRandomStep), kWanted[0]);
  EXPECT_EQ(mixed(0), 0U);
}

TEST(Random, BelowABoundEachNumberComesAsOften) {
  std::uint64_t state = 7;
  std::vector<int> times(5);
  for (int i = 0; i < 5000; ++i) ++times.at(next_below(state, times.size()));
  for (const int count : times) EXPECT_NEAR(count, 1000, 120);  // 4 sigma
  EXPECT_EQ(next_below(state, 1), 0U);
}

}  // namespace
}  // namespace base
