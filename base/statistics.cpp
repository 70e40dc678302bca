#include "base/statistics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <vector>

namespace base {

namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

bool says_nothing(std::span<const double> sample) {
  return sample.empty() || std::any_of(sample.begin(), sample.end(), [](double x) { return std::isnan(x); });
}

void must_be_share(const char* function, double share) {
  if (!(share >= 0 && share <= 1)) throw std::invalid_argument(fmt::format("{}: {} is not in [0, 1]", function, share));
}

double at_rank(std::span<const double> sample, std::size_t rank) {  // from 0, ascending
  std::vector<double> values(sample.begin(), sample.end());
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

double quantile(std::span<const double> sample, double q) {
  must_be_share("quantile", q);
  if (says_nothing(sample)) return kNoNumber;
  std::vector<double> sorted(sample.begin(), sample.end());
  std::sort(sorted.begin(), sorted.end());
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

double median(std::span<const double> sample) { return quantile(sample, 0.5); }

double nearest_rank(std::span<const double> sample, double share) {
  must_be_share("nearest_rank", share);
  if (says_nothing(sample)) return kNoNumber;
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sample.size())));  // from 1
  return at_rank(sample, std::max<std::size_t>(rank, 1) - 1);
}

double upper_median(std::span<const double> sample) {
  return says_nothing(sample) ? kNoNumber : at_rank(sample, sample.size() / 2);
}

}  // namespace base
