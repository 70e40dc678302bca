// The middle of a sample and its quantiles, each with its rule. All give NaN for an empty sample, and when any value is
// NaN: nothing downstream can then pass a comparison.
#pragma once

#include <span>

namespace base {

// Linear interpolation between order statistics (type 7); `q` in [0, 1], else std::invalid_argument.
[[nodiscard]] double quantile(std::span<const double> sample, double q);
// quantile(0.5): of an even number of values the mean of both middle ones.
[[nodiscard]] double median(std::span<const double> sample);

// Those that are always a value of the sample. The smallest that at least `share` of all do not exceed, `share` in
// [0, 1], else std::invalid_argument; nearest_rank(0.5) is the lower middle.
[[nodiscard]] double nearest_rank(std::span<const double> sample, double share);
// Of an even number of values the upper middle one.
[[nodiscard]] double upper_median(std::span<const double> sample);

}  // namespace base
