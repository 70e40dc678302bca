// Statistics of repeated measurements: what a verdict about time may rest on. Order does not matter to any of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace suites::probes {

// NaN for an empty sample, and when any value is NaN: nothing downstream can then pass a comparison.
[[nodiscard]] double mean(std::span<const double> sample);
[[nodiscard]] double median(std::span<const double> sample);
// Linear interpolation between order statistics (type 7); `q` in [0, 1].
[[nodiscard]] double quantile(std::span<const double> sample, double q);
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

}  // namespace suites::probes
