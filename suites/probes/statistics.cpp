#include "suites/probes/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>

#include "base/random.hpp"

namespace suites::probes {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool has_nan(std::span<const double> sample) {
  return std::any_of(sample.begin(), sample.end(), [](double x) { return std::isnan(x); });
}

// Seedable, and the same on every platform (std::uniform_int_distribution is not).
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(base::next_random(state_) % bound); }

 private:
  std::uint64_t state_;
};

double median_of_resample(std::span<const double> sample, Generator& generator, std::vector<double>& scratch) {
  scratch.resize(sample.size());
  for (double& x : scratch) x = sample[generator.below(sample.size())];
  return median(scratch);
}

Interval percentile_interval(const std::function<double()>& draw, double confidence, int resamples) {
  std::vector<double> draws(static_cast<std::size_t>(resamples));
  std::generate(draws.begin(), draws.end(), draw);
  return {quantile(draws, (1 - confidence) / 2), quantile(draws, (1 + confidence) / 2)};
}

}  // namespace

double mean(std::span<const double> sample) {
  if (sample.empty()) return kNan;
  return std::accumulate(sample.begin(), sample.end(), 0.0) / static_cast<double>(sample.size());
}

double interquartile_range(std::span<const double> sample) { return quantile(sample, 0.75) - quantile(sample, 0.25); }

double standard_deviation(std::span<const double> sample) {
  if (sample.size() < 2) return kNan;
  const double centre = mean(sample);
  double squares = 0;
  for (const double x : sample) squares += (x - centre) * (x - centre);
  return std::sqrt(squares / static_cast<double>(sample.size() - 1));
}

Interval bootstrap_median(std::span<const double> sample, double confidence, std::uint64_t seed, int resamples) {
  if (sample.empty() || has_nan(sample)) return {kNan, kNan};
  Generator generator(seed);
  std::vector<double> scratch;
  return percentile_interval([&] { return median_of_resample(sample, generator, scratch); }, confidence, resamples);
}

Interval bootstrap_ratio(std::span<const double> a, std::span<const double> b, double confidence, std::uint64_t seed,
                         int resamples) {
  if (a.empty() || b.empty() || has_nan(a) || has_nan(b)) return {kNan, kNan};
  Generator generator(seed);
  std::vector<double> scratch;
  const auto draw = [&] {
    const double numerator = median_of_resample(a, generator, scratch);
    return numerator / median_of_resample(b, generator, scratch);
  };
  return percentile_interval(draw, confidence, resamples);
}

Line fit_line(std::span<const double> x, std::span<const double> y) {
  if (x.size() != y.size()) throw std::invalid_argument("fit_line: x and y differ in length");
  const double x_mean = mean(x), y_mean = mean(y);
  double covariance = 0, variance = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    covariance += (x[i] - x_mean) * (y[i] - y_mean);
    variance += (x[i] - x_mean) * (x[i] - x_mean);
  }
  if (!(variance > 0)) return {kNan, kNan};
  return {y_mean - covariance / variance * x_mean, covariance / variance};
}

PowerLaw fit_power(std::span<const double> x, std::span<const double> y) {
  std::vector<double> log_x, log_y;
  for (const double value : x) log_x.push_back(value > 0 ? std::log(value) : kNan);
  for (const double value : y) log_y.push_back(value > 0 ? std::log(value) : kNan);
  const Line line = fit_line(log_x, log_y);
  const double centre = mean(log_y);
  double left = 0, total = 0;
  for (std::size_t i = 0; i < log_x.size(); ++i) {
    left += std::pow(log_y[i] - line.intercept - line.slope * log_x[i], 2);
    total += std::pow(log_y[i] - centre, 2);
  }
  return {std::exp(line.intercept), line.slope, total > 0 ? 1 - left / total : 1};
}

Trend theil_sen(std::span<const double> sample, double z) {
  if (sample.size() < 8 || has_nan(sample)) return {kNan, {kNan, kNan}};
  constexpr std::size_t kMost = 500;  // some 125,000 pairs
  const std::size_t stride = (sample.size() + kMost - 1) / kMost;
  std::vector<double> slopes;
  std::size_t used = 0;
  for (std::size_t i = 0; i < sample.size(); i += stride, ++used)
    for (std::size_t j = i + stride; j < sample.size(); j += stride)
      slopes.push_back((sample[j] - sample[i]) / static_cast<double>(j - i));
  std::sort(slopes.begin(), slopes.end());
  // Kendall's S has variance n (n-1) (2n+5) / 18.
  const auto count = static_cast<double>(used), pairs = static_cast<double>(slopes.size());
  const double reach = z * std::sqrt(count * (count - 1) * (2 * count + 5) / 18);
  const auto at_rank = [&](double rank) { return slopes[static_cast<std::size_t>(std::clamp(rank, 0.0, pairs - 1))]; };
  return {median(slopes), {at_rank(std::floor((pairs - reach) / 2) - 1), at_rank(std::ceil((pairs + reach) / 2))}};
}

double mann_whitney(std::span<const double> a, std::span<const double> b) {
  if (a.empty() || b.empty() || has_nan(a) || has_nan(b)) return kNan;
  std::map<double, std::pair<double, double>> counts;  // value -> how often in a, in b
  for (const double x : a) counts[x].first += 1;
  for (const double x : b) counts[x].second += 1;
  const auto n_a = static_cast<double>(a.size()), n_b = static_cast<double>(b.size()), n = n_a + n_b;
  double below = 0, u = 0, ties = 0;  // u: pairs in which a is the larger, ties half
  for (const auto& [value, count] : counts) {
    const auto [in_a, in_b] = count;
    u += in_a * (below + in_b / 2);
    below += in_b;
    ties += std::pow(in_a + in_b, 3) - (in_a + in_b);
  }
  const double variance = n_a * n_b / 12 * (n + 1 - ties / (n * (n - 1)));
  if (!(variance > 0)) return 1;
  const double distance = std::max(0.0, std::abs(u - n_a * n_b / 2) - 0.5);
  return std::erfc(distance / std::sqrt(2 * variance));
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return p[i] < p[j]; });
  std::vector<double> adjusted(p.size());
  double largest = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    largest = std::max(largest, std::min(1.0, p[order[rank]] * static_cast<double>(p.size() - rank)));
    adjusted[order[rank]] = largest;
  }
  return adjusted;
}

}  // namespace suites::probes
