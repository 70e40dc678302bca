#include "suites/probes/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace suites::probes {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Sample = std::vector<double>;

TEST(Statistics, MedianAndQuartilesOfKnownSamples) {
  EXPECT_DOUBLE_EQ(median(Sample{3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median(Sample{4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(quantile(Sample{4, 1, 3, 2}, 0.25), 1.75);
  EXPECT_DOUBLE_EQ(interquartile_range(Sample{4, 1, 3, 2}), 1.5);
  EXPECT_DOUBLE_EQ(quantile(Sample{7}, 0.9), 7);
  EXPECT_DOUBLE_EQ(quantile(Sample{5, 9}, 0), 5);
  EXPECT_DOUBLE_EQ(quantile(Sample{5, 9}, 1), 9);
}

TEST(Statistics, MeanAndDeviation) {
  EXPECT_DOUBLE_EQ(mean(Sample{2, 4, 9}), 5);
  EXPECT_DOUBLE_EQ(standard_deviation(Sample{2, 4, 9}), std::sqrt(13.0));
  EXPECT_TRUE(std::isnan(standard_deviation(Sample{2})));
}

TEST(Statistics, NothingAndNanGiveNan) {
  for (const Sample& sample : {Sample{}, Sample{1, kNan, 3}}) {
    EXPECT_TRUE(std::isnan(mean(sample)));
    EXPECT_TRUE(std::isnan(median(sample)));
    EXPECT_TRUE(std::isnan(bootstrap_median(sample).low));
    EXPECT_TRUE(std::isnan(bootstrap_ratio(Sample{1, 2}, sample).high));
    EXPECT_TRUE(std::isnan(bootstrap_ratio(sample, Sample{1, 2}).high));
  }
}

TEST(Statistics, QuantileOutsideItsRangeIsRefused) {
  EXPECT_THROW((void)quantile(Sample{1, 2}, 1.5), std::invalid_argument);
  EXPECT_THROW((void)quantile(Sample{1, 2}, kNan), std::invalid_argument);
}

TEST(Statistics, BootstrapCoversTheMedianAndStaysInsideTheSample) {
  const Sample sample{10, 11, 12, 13, 14, 15, 16};
  const Interval interval = bootstrap_median(sample, 0.95, 7);
  EXPECT_GE(interval.low, 10);
  EXPECT_LT(interval.low, 13);
  EXPECT_GT(interval.high, 13);
  EXPECT_LE(interval.high, 16);
}

TEST(Statistics, BootstrapIsRepeatableAndDegenerateForOneValue) {
  const Sample sample{1, 5, 2, 8, 3};
  EXPECT_EQ(bootstrap_median(sample, 0.9, 3).low, bootstrap_median(sample, 0.9, 3).low);
  EXPECT_DOUBLE_EQ(bootstrap_median(Sample{4}).low, 4);
  EXPECT_DOUBLE_EQ(bootstrap_median(Sample{4}).high, 4);
}

// 95 % intervals from samples of 9 must cover the known median nearly that often (the percentile method: about 90 %).
TEST(Statistics, BootstrapCoverage) {
  std::uint64_t state = 12345;
  const auto uniform = [&state] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state >> 11) / 9007199254740992.0;
  };
  int covered = 0;
  for (int trial = 0; trial < 300; ++trial) {
    Sample sample(9);
    for (double& x : sample) x = uniform();
    const Interval interval = bootstrap_median(sample, 0.95, static_cast<std::uint64_t>(trial), 300);
    covered += interval.low <= 0.5 && 0.5 <= interval.high;
  }
  EXPECT_GE(covered, 255);
}

TEST(Statistics, RatioIntervalOfClearlyDifferentSamples) {
  const Interval interval = bootstrap_ratio(Sample{20, 21, 19, 20, 22}, Sample{10, 10.5, 9.5, 10, 11});
  EXPECT_GT(interval.low, 1.5);
  EXPECT_LT(interval.high, 2.5);
}

TEST(Statistics, LineThroughKnownPoints) {
  const Line line = fit_line(Sample{1, 2, 4}, Sample{5, 7, 11});
  EXPECT_DOUBLE_EQ(line.slope, 2);
  EXPECT_DOUBLE_EQ(line.intercept, 3);
  EXPECT_TRUE(std::isnan(fit_line(Sample{2, 2}, Sample{1, 5}).slope));
  EXPECT_THROW((void)fit_line(Sample{1}, Sample{1, 2}), std::invalid_argument);
}

}  // namespace
}  // namespace suites::probes
