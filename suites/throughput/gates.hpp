// Verdicts on repeated times. All are pure functions of samples, and all rest on an interval, never on one value.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "reports/json.hpp"
#include "suites/probes/statistics.hpp"

namespace suites::throughput_cases {

// What a sample says: median, its 95 % bootstrap interval, and the scatter (interquartile range / median).
struct Summary {
  std::size_t n = 0;
  double median = 0;
  probes::Interval interval;
  double scatter = 0;
};
[[nodiscard]] Summary summarise(std::span<const double> sample);
[[nodiscard]] reports::Json to_json(const Summary& summary);

// Beyond this scatter a sample of times is not fit to be judged.
inline constexpr double kMaximalScatter = 0.35;

enum class Gate {
  above,      // the whole interval is at or above the floor
  unclear,    // the interval holds the floor: measure again, longer
  below,      // the whole interval is below the floor
  far_below,  // the whole interval is below half of the floor; also no sample at all, and NaN
};
[[nodiscard]] std::string_view to_string(Gate gate);
[[nodiscard]] Gate judge(const Summary& rate, double floor);

// tokens / seconds of each sample.
[[nodiscard]] std::vector<double> rates(std::span<const double> seconds, double tokens);

// The time at the last depth against what the line through the two first depths foretells: 1 is linear, more is a cost
// that grows with depth. Interval by resampling each depth. Depths ascend; at least three.
struct Depth {
  double layers = 0;
  std::vector<double> seconds;
};
[[nodiscard]] probes::Interval growth(std::span<const Depth> depths);

}  // namespace suites::throughput_cases
