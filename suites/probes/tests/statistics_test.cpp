#include "suites/probes/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace suites::probes {
namespace statistics_test {

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

TEST(Statistics, PowerLawThroughKnownPoints) {
  const PowerLaw law = fit_power(Sample{1, 2, 4, 8}, Sample{3, 12, 48, 192});
  EXPECT_NEAR(law.exponent, 2, 1e-12);
  EXPECT_NEAR(law.factor, 3, 1e-12);
  EXPECT_NEAR(law.r2, 1, 1e-12);
  EXPECT_TRUE(std::isnan(fit_power(Sample{1, 2}, Sample{1, 0}).exponent)) << "0 has no logarithm";
  EXPECT_TRUE(std::isnan(fit_power(Sample{2, 2}, Sample{1, 3}).exponent));
}

TEST(Statistics, ATrendIsSeenThroughOutliersAndNoiseHasNone) {
  Sample grows, level;
  for (int i = 0; i < 24; ++i) {
    const double wobble = 0.5 * ((i * 7) % 5) - 1;
    grows.push_back(100 + 2 * i + wobble);
    level.push_back(100 + wobble);
  }
  grows[5] = grows[17] = 500;
  level[20] = level[22] = 500;
  const Trend up = theil_sen(grows), flat = theil_sen(level);
  EXPECT_NEAR(up.slope, 2, 0.15);
  EXPECT_GT(up.interval.low, 1.5);
  EXPECT_LT(flat.interval.low, 0.01);
  EXPECT_GT(flat.interval.high, -0.01);
  EXPECT_TRUE(std::isnan(theil_sen(Sample{1, 2, 3}).interval.low)) << "three values show no trend";
  Sample line(3000);  // thinned: four million pairs would take seconds
  for (std::size_t i = 0; i < line.size(); ++i) line[i] = static_cast<double>(i);
  EXPECT_DOUBLE_EQ(theil_sen(line).slope, 1);
  EXPECT_EQ(theil_sen(Sample(50, 3.0)).slope, 0);
  line[1] = NAN;
  EXPECT_TRUE(std::isnan(theil_sen(line).interval.low));
}

TEST(Statistics, TrendIntervalRarelyExcludesZeroForNoise) {
  std::uint64_t state = 99;
  const auto uniform = [&state] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state >> 11) / 9007199254740992.0;
  };
  int alarms = 0;
  for (int trial = 0; trial < 300; ++trial) {
    Sample sample(20);
    for (double& x : sample) x = uniform();
    const Interval interval = theil_sen(sample).interval;
    alarms += interval.low > 0 || interval.high < 0;
  }
  EXPECT_LE(alarms, 12) << "of 300; 1 % is 3";
}

TEST(Statistics, MannWhitneyOfKnownSamples) {
  const Sample low{1, 2, 3, 4, 5, 6, 7, 8}, high{11, 12, 13, 14, 15, 16, 17, 18};
  EXPECT_LT(mann_whitney(low, high), 0.001);
  EXPECT_DOUBLE_EQ(mann_whitney(low, high), mann_whitney(high, low));
  EXPECT_GT(mann_whitney(low, low), 0.9);
  EXPECT_EQ(mann_whitney(Sample{2, 2, 2}, Sample{2, 2}), 1) << "all tied";
  EXPECT_TRUE(std::isnan(mann_whitney(Sample{}, low)));
}

TEST(Statistics, HolmMultipliesByWhatIsLeftAndNeverFalls) {
  const std::vector<double> adjusted = holm(Sample{0.04, 0.01, 0.03});
  EXPECT_DOUBLE_EQ(adjusted[1], 0.03);
  EXPECT_DOUBLE_EQ(adjusted[2], 0.06);
  EXPECT_DOUBLE_EQ(adjusted[0], 0.06) << "not below a smaller p";
  EXPECT_TRUE(holm(Sample{}).empty());
}

}  // namespace statistics_test
}  // namespace suites::probes
