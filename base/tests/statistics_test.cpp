#include "base/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

namespace base {
namespace {

using Sample = std::vector<double>;
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

TEST(Statistics, EachRuleOfAMiddle) {
  EXPECT_EQ(median(Sample{3, 1, 2}), 2);
  EXPECT_EQ(upper_median(Sample{3, 1, 2}), 2);
  EXPECT_EQ(nearest_rank(Sample{3, 1, 2}, 0.5), 2);
  EXPECT_EQ(median(Sample{4, 1, 3, 2}), 2.5);
  EXPECT_EQ(upper_median(Sample{4, 1, 3, 2}), 3);
  EXPECT_EQ(nearest_rank(Sample{4, 1, 3, 2}, 0.5), 2);
}

TEST(Statistics, QuantilesLieBetweenValuesAndNearestRanksOnThem) {
  EXPECT_EQ(quantile(Sample{4, 1, 3, 2}, 0.25), 1.75);
  EXPECT_EQ(nearest_rank(Sample{4, 1, 3, 2}, 0.25), 1);
  EXPECT_EQ(nearest_rank(Sample{4, 1, 3, 2}, 0.26), 2);
  EXPECT_EQ(nearest_rank(Sample{4, 1, 3, 2}, 0.95), 4);
  for (const double share : {0.0, 0.5, 1.0}) {
    EXPECT_EQ(quantile(Sample{7}, share), 7);
    EXPECT_EQ(nearest_rank(Sample{7}, share), 7);
  }
  EXPECT_EQ(quantile(Sample{9, 5}, 0), 5);
  EXPECT_EQ(nearest_rank(Sample{9, 5}, 0), 5);
  EXPECT_EQ(quantile(Sample{9, 5}, 1), 9);
  EXPECT_EQ(nearest_rank(Sample{9, 5}, 1), 9);
}

TEST(Statistics, NothingAndNanHaveNoMiddle) {
  for (const Sample& sample : {Sample{}, Sample{1, kNotANumber, 3}}) {
    EXPECT_TRUE(std::isnan(median(sample)));
    EXPECT_TRUE(std::isnan(upper_median(sample)));
    EXPECT_TRUE(std::isnan(quantile(sample, 0.1)));
    EXPECT_TRUE(std::isnan(nearest_rank(sample, 0.1)));
  }
}

TEST(Statistics, AShareOutsideItsRangeIsRefused) {
  for (const double share : {-0.1, 1.5, kNotANumber}) {
    EXPECT_THROW((void)quantile(Sample{1, 2}, share), std::invalid_argument);
    EXPECT_THROW((void)nearest_rank(Sample{1, 2}, share), std::invalid_argument);
  }
}

}  // namespace
}  // namespace base
