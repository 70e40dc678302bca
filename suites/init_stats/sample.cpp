#include "suites/init_stats/sample.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace suites::init_laws {

namespace {

// The largest distance between the law's distribution function and the sample's, from both sides of every step.
double ks_distance(const at::Tensor& values, const Law& law) {
  const at::Tensor x = std::get<0>(values.sort());
  const std::int64_t n = x.numel();
  at::Tensor F = law.kind == Law::Kind::uniform ? ((x / law.scale + 1) / 2).clamp(0, 1)
                                                : (1 + at::erf(x / (law.scale * std::numbers::sqrt2))) / 2;
  const at::Tensor rank = at::arange(n, x.options());
  const double above = ((rank + 1) / static_cast<double>(n) - F).max().item<double>();
  const double below = (F - rank / static_cast<double>(n)).max().item<double>();
  return std::max(above, below);
}

// Bernstein: P(|mean - mu| > t) <= 2 exp(-n t^2 / (2 v + 2 b t / 3)) for independent values with variance v and
// |value - mu| <= b. The t at which that is `alarm`.
double bernstein(double variance, double b, double n, double alarm) {
  const double log_term = std::log(2 / alarm);
  const double linear = 2 * b * log_term / 3;
  return (linear + std::sqrt(linear * linear + 8 * n * variance * log_term)) / (2 * n);
}

struct Interval {
  double low, high;
};

Interval mean_bound(const Law& law, double n, double alarm) {
  const double t = law.kind == Law::Kind::uniform
                       ? bernstein(law.scale * law.scale / 3, law.scale, n, alarm)
                       : law.scale * std::sqrt(2 * std::log(2 / alarm) / n);  // P(|Z| > t) <= 2 exp(-t^2/2)
  return {-t, t};
}

Interval mean_square_bound(const Law& law, double n, double alarm) {
  const double a2 = law.scale * law.scale;
  if (law.kind == Law::Kind::uniform) {  // x^2 in [0, a^2], mean a^2/3, variance 4 a^4/45
    const double t = bernstein(4 * a2 * a2 / 45, 2 * a2 / 3, n, alarm);
    return {a2 / 3 - t, a2 / 3 + t};
  }
  // Laurent and Massart for chi-square with n degrees of freedom.
  const double x = std::log(2 / alarm);
  return {a2 * (1 - 2 * std::sqrt(x / n)), a2 * (1 + 2 * std::sqrt(x / n) + 2 * x / n)};
}

// The largest |x| of the sample. Below: P(all |x| < t) = P(|x| < t)^n is `alarm` at the lower bound, exactly; it tells
// a normal law from one that ends (uniform, truncated) long before the other bounds do.
Interval largest_bound(const Law& law, double n, double alarm) {
  if (law.kind == Law::Kind::uniform) return {law.scale * std::pow(alarm, 1 / n), law.scale};
  const at::Tensor share = at::scalar_tensor(std::pow(alarm / 2, 1 / n), at::kDouble);  // P(|x| < t) = erf(t/sqrt(2))
  const double low = std::numbers::sqrt2 * at::erfinv(share).item<double>();
  return {law.scale * low, law.scale * std::sqrt(2 * std::log(2 * n / alarm))};  // above: union over n tails
}

}  // namespace

Statistics measure(const at::Tensor& t, const Law& law) {
  const at::Tensor x = t.detach().to(at::kDouble).flatten();
  Statistics s;
  s.n = x.numel();
  if (s.n == 0) return s;
  const at::Tensor square = x * x;
  s.mean = x.mean().item<double>();
  s.mean_square = square.mean().item<double>();
  const at::Tensor centred = x - s.mean;
  const double variance = (centred * centred).mean().item<double>();
  s.deviation = std::sqrt(variance);
  s.minimum = x.min().item<double>();
  s.maximum = x.max().item<double>();
  if (variance > 0) s.kurtosis = centred.pow(4).mean().item<double>() / (variance * variance);
  if (law.random()) s.ks = ks_distance(x, law);
  return s;
}

std::vector<Bound> bounds(const Statistics& s, const Law& law, double alarm, double rounding) {
  if (!law.random()) {  // exact, whatever the storage
    const double value = law.kind == Law::Kind::ones ? 1 : 0;
    return {{"minimum", s.minimum, value, value}, {"maximum", s.maximum, value, value}};
  }
  const double n = static_cast<double>(s.n);
  const Interval mean = mean_bound(law, n, alarm);
  const Interval square = mean_square_bound(law, n, alarm);
  const Interval largest = largest_bound(law, n, alarm);
  // Dvoretzky, Kiefer, Wolfowitz and Massart: P(ks > e) <= 2 exp(-2 n e^2).
  const double ks = std::sqrt(std::log(2 / alarm) / (2 * n)) + law.rounding_slope() * rounding;
  const double up = 1 + 2 * rounding, down = 1 - 2 * rounding;  // 2: the scale itself may be rounded, too
  const double shift = rounding * law.scale;
  return {{"mean", s.mean, mean.low - shift, mean.high + shift},
          {"mean_square", s.mean_square, square.low * (square.low > 0 ? down * down : 1), square.high * up * up},
          {"largest", std::max(std::abs(s.minimum), std::abs(s.maximum)), largest.low * down, largest.high * up},
          {"ks", s.ks, 0, ks}};
}

std::int64_t detectable_size(const Law& law, double factor, double alarm, double miss) {
  if (!law.random()) return 1;
  const auto caught = [&](double n) {
    Law scaled = law;
    scaled.scale *= factor;
    const Interval allowed = mean_square_bound(law, n, alarm), likely = mean_square_bound(scaled, n, miss);
    if (likely.low > allowed.high || likely.high < allowed.low) return true;
    if (law.kind != Law::Kind::uniform) return false;
    // Range: stretched, no value beyond the law's edge; shrunk, the largest below its lower bound for certain.
    return factor > 1 ? std::pow(1 / factor, n) <= miss : factor <= std::pow(alarm, 1 / n);
  };
  std::int64_t low = 1, high = std::int64_t{1} << 40;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (caught(static_cast<double>(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace suites::init_laws
