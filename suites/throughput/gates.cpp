#include "suites/throughput/gates.hpp"

#include <algorithm>
#include <stdexcept>

#include "harness/compare.hpp"

namespace suites::throughput_cases {

using probes::Interval;

Summary summarise(std::span<const double> sample) {
  const double median = probes::median(sample);
  return {sample.size(), median, probes::bootstrap_median(sample), probes::interquartile_range(sample) / median};
}

reports::Json to_json(const Summary& summary) {
  return {{"median", reports::number(summary.median)},
          {"low", reports::number(summary.interval.low)},
          {"high", reports::number(summary.interval.high)},
          {"scatter", reports::number(summary.scatter)},
          {"n", summary.n}};
}

std::string_view to_string(Gate gate) {
  switch (gate) {
    case Gate::above:
      return "above";
    case Gate::unclear:
      return "unclear";
    case Gate::below:
      return "below";
    case Gate::far_below:
      return "far_below";
  }
  return "?";
}

Gate judge(const Summary& rate, double floor) {
  if (harness::at_least(rate.interval.low, floor)) return Gate::above;
  if (!harness::at_least(rate.interval.high, floor / 2)) return Gate::far_below;
  if (!harness::at_least(rate.interval.high, floor)) return Gate::below;
  return Gate::unclear;
}

std::vector<double> rates(std::span<const double> seconds, double tokens) {
  std::vector<double> per_second;
  for (const double s : seconds) per_second.push_back(tokens / s);
  return per_second;
}

Interval growth(std::span<const Depth> depths) {
  if (depths.size() < 3) throw std::invalid_argument("growth: at least three depths are needed");
  const Depth &a = depths[0], &b = depths[1], &c = depths.back();
  const auto foretold = [&](double at_a, double at_b) {
    return at_a + (at_b - at_a) * (c.layers - a.layers) / (b.layers - a.layers);
  };
  const Interval t_a = probes::bootstrap_median(a.seconds), t_b = probes::bootstrap_median(b.seconds, 0.95, 1),
                 t_c = probes::bootstrap_median(c.seconds, 0.95, 2);
  // The line is lowest when the first depth took long and the second did not; it is never below the second depth.
  const double lowest = std::max(foretold(t_a.high, t_b.low), t_b.low);
  const double highest = std::max(foretold(t_a.low, t_b.high), t_b.high);
  return {t_c.low / highest, t_c.high / lowest};
}

}  // namespace suites::throughput_cases
