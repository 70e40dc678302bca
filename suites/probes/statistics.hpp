// Statistics of repeated measurements: what a verdict about time may rest on. Order matters to theil_sen alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/statistics.hpp"

namespace suites::probes {

using base::median;
using base::quantile;

// NaN for an empty sample, and when any value is NaN: nothing downstream can then pass a comparison.
[[nodiscard]] double mean(std::span<const double> sample);
[[nodiscard]] double interquartile_range(std::span<const double> sample);
// Square root of the unbiased variance; NaN for fewer than two values.
[[nodiscard]] double standard_deviation(std::span<const double> sample);

struct Interval {
  double low = 0, high = 0;
};
// Percentile bootstrap of the median: `resamples` draws with replacement from a generator of its own, seeded with
// `seed`, so that the same sample always gives the same interval. One value gives a degenerate interval, none NaN.
[[nodiscard]] Interval bootstrap_median(std::span<const double> sample, double confidence = 0.95,
                                        std::uint64_t seed = 0, int resamples = 2000);
// The same for median(a) / median(b), resampled independently.
[[nodiscard]] Interval bootstrap_ratio(std::span<const double> a, std::span<const double> b, double confidence = 0.95,
                                       std::uint64_t seed = 0, int resamples = 2000);

// Least squares y = intercept + slope * x; NaN for fewer than two distinct x.
struct Line {
  double intercept = 0, slope = 0;
};
[[nodiscard]] Line fit_line(std::span<const double> x, std::span<const double> y);

// y = factor * x^exponent: least squares of the logarithms. NaN for fewer than two distinct x and for values
// that are not positive.
struct PowerLaw {
  double factor = 0, exponent = 0;
  double r2 = 0;  // of the logarithms
};
[[nodiscard]] PowerLaw fit_power(std::span<const double> x, std::span<const double> y);

// Trend of a sample in the order in which it was measured: the median of the slopes of all pairs (Theil and Sen), per
// place, and its interval by Kendall's statistic at `z` standard deviations (2.576: 99 %). One outlier in four does not
// move it. Beyond 500 values every k-th is used. NaN for fewer than 8: they show no trend.
struct Trend {
  double slope = 0;
  Interval interval;
};
[[nodiscard]] Trend theil_sen(std::span<const double> sample, double z = 2.576);

// Two-sided p of Mann and Whitney's test that neither sample tends to be larger (normal approximation with the
// correction for ties; at least 8 values each make it good). NaN for an empty sample.
[[nodiscard]] double mann_whitney(std::span<const double> a, std::span<const double> b);
// Holm's correction of several p values, in their order.
[[nodiscard]] std::vector<double> holm(std::span<const double> p);

}  // namespace suites::probes
