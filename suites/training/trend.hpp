// Does a figure grow from step to step? The Theil-Sen slope (median of the slopes of all pairs; Sen 1968), which a few
// outliers do not move, and its interval from the distribution of Kendall's S.
#pragma once

#include <span>

namespace suites::training_cases {

struct Trend {
  double slope = 0;          // per sample
  double low = 0, high = 0;  // 99 % interval of the slope
};
// Of samples at equal distances. Beyond 500 samples every k-th is used. NaN for fewer than three samples, and when one
// of them is NaN.
[[nodiscard]] Trend trend(std::span<const double> samples);

}  // namespace suites::training_cases
