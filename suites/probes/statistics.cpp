#include "suites/probes/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace suites::probes {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool has_nan(std::span<const double> sample) {
  return std::any_of(sample.begin(), sample.end(), [](double x) { return std::isnan(x); });
}

// SplitMix64: small, seedable, and the same on every platform (std::uniform_int_distribution is not).
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }

 private:
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
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

double median(std::span<const double> sample) { return quantile(sample, 0.5); }

double quantile(std::span<const double> sample, double q) {
  if (!(q >= 0 && q <= 1)) throw std::invalid_argument("quantile: q = " + std::to_string(q) + " is not in [0, 1]");
  if (sample.empty() || has_nan(sample)) return kNan;
  std::vector<double> sorted(sample.begin(), sample.end());
  std::sort(sorted.begin(), sorted.end());
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
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

}  // namespace suites::probes
