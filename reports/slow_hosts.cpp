#include "reports/slow_hosts.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "base/statistics.hpp"

namespace reports {

namespace {

constexpr double kMadOfNormal = 1.4826;   // standard deviations in a MAD
constexpr double kDegreesPerHost = 0.35;  // of the tail of T, see the header
constexpr double kLeastWidth = 0.002;     // of the logarithms: hosts that round alike are not infinitely exact
constexpr double kWorthALook = 2;         // below this T nothing is rare

bool usable(const FleetFigure::Value& value) { return std::isfinite(value.value) && value.value > 0; }

// Logarithms of a figure, larger for slower; nothing for a host whose value is no speed.
struct Sample {
  std::vector<std::size_t> hosts;
  std::vector<double> slowness;
};

Sample sample_of(const FleetFigure& figure) {
  Sample sample;
  for (const FleetFigure::Value& value : figure.values) {
    if (!usable(value)) continue;
    sample.hosts.push_back(value.host);
    sample.slowness.push_back((figure.more_is_faster ? -1 : 1) * std::log(value.value));
  }
  return sample;
}

void judge(const Sample& sample, const FleetFigure& figure, std::size_t number, SlowHosts& to) {
  const double centre = base::median(sample.slowness);
  std::vector<double> distances;
  distances.reserve(sample.slowness.size());
  for (const double x : sample.slowness) distances.push_back(std::abs(x - centre));
  const double width = std::max(kMadOfNormal * base::median(distances), kLeastWidth);
  const double degrees = kDegreesPerHost * static_cast<double>(sample.hosts.size() - 1);
  for (std::size_t i = 0; i < sample.hosts.size(); ++i) {
    const double behind = sample.slowness[i] - centre;
    const double t = behind / width;
    if (!(t > kWorthALook) || !(1 - std::exp(-behind) >= kLeastShare)) continue;
    const double tail = student_tail(t, degrees);
    const double sign = figure.more_is_faster ? -1 : 1;
    to.found.push_back({sample.hosts[i], number, std::exp(sign * sample.slowness[i]), std::exp(sign * centre),
                        100 * (1 - std::exp(-behind)), tail});
  }
}

}  // namespace

// With x = n / (n + t^2) it is half of the regularised incomplete beta function I_x(n/2, 1/2); substituting v = u^(1/a)
// in its integral leaves a smooth integrand, which the midpoint rule takes.
double student_tail(double t, double degrees) {
  constexpr int kPoints = 400;
  const double a = degrees / 2, x = degrees / (degrees + t * t);
  double sum = 0;
  for (int i = 0; i < kPoints; ++i) sum += 1 / std::sqrt(1 - x * std::pow((i + 0.5) / kPoints, 1 / a));
  const double log_beta = std::lgamma(a) + std::lgamma(0.5) - std::lgamma(a + 0.5);
  return 0.5 * std::exp(a * std::log(x) - log_beta) / a * sum / kPoints;
}

SlowHosts find_slow_hosts(const std::vector<FleetFigure>& figures) {
  SlowHosts result;
  for (std::size_t i = 0; i < figures.size(); ++i) {
    const Sample sample = sample_of(figures[i]);
    if (sample.hosts.size() < kLeastHosts) {
      result.figures_of_few += sample.hosts.empty() ? 0 : 1;
      continue;
    }
    ++result.figures;
    result.comparisons += sample.hosts.size();
    judge(sample, figures[i], i, result);
  }
  for (SlowHost& slow : result.found)
    slow.chance = std::min(1.0, slow.chance * static_cast<double>(result.comparisons));
  std::erase_if(result.found, [](const SlowHost& slow) { return !(slow.chance <= kFalseAlarmRate); });
  std::stable_sort(result.found.begin(), result.found.end(),
                   [](const SlowHost& a, const SlowHost& b) { return a.chance < b.chance; });
  return result;
}

}  // namespace reports
