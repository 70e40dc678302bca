#include "suites/training/trend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "suites/probes/statistics.hpp"

namespace suites::training_cases {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kDeviations = 2.576;  // of a normal distribution: 99 %
constexpr std::size_t kMost = 500;     // samples: some 125,000 pairs

}  // namespace

Trend trend(std::span<const double> samples) {
  const std::size_t stride = (samples.size() + kMost - 1) / kMost;
  std::vector<double> y;
  for (std::size_t i = 0; i < samples.size(); i += stride) y.push_back(samples[i]);
  const std::size_t n = y.size();
  if (n < 3 || std::any_of(y.begin(), y.end(), [](double v) { return std::isnan(v); })) return {kNan, kNan, kNan};

  std::vector<double> slopes;
  slopes.reserve(n * (n - 1) / 2);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j) {
      slopes.push_back((y[j] - y[i]) / static_cast<double>((j - i) * stride));
    }
  }
  // Kendall's S has variance n (n-1) (2n+5) / 18; the interval cuts half of kDeviations of it off each end.
  const auto count = static_cast<double>(n), pairs = static_cast<double>(slopes.size());
  const double cut = kDeviations * std::sqrt(count * (count - 1) * (2 * count + 5) / 18);
  const double tail = std::max(0.0, (pairs - cut) / 2 / pairs);
  return {probes::median(slopes), probes::quantile(slopes, tail), probes::quantile(slopes, 1 - tail)};
}

}  // namespace suites::training_cases
