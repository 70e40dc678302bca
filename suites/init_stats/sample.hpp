// Does a sample follow its law? Bounds hold for every size: none is an approximation for large n, each is wrong with at
// most the false-alarm probability that it is given.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "suites/init_stats/law.hpp"

namespace suites::init_laws {

struct Statistics {
  std::int64_t n = 0;
  double mean = 0, deviation = 0, minimum = 0, maximum = 0;
  double mean_square = 0;  // about 0
  double kurtosis = 0;     // 1.8 uniform, 3 normal
  double ks = 0;           // Kolmogorov-Smirnov distance to the law's distribution function; 0 for constants
};
// Of all values of `t`, computed in fp64 where it lies.
[[nodiscard]] Statistics measure(const at::Tensor& t, const Law& law);

struct Bound {
  std::string what;  // "mean", "mean_square", "largest", "ks", "minimum", "maximum"
  double value, low, high;
};
// What the law allows for a sample of this size: each bound fails with probability at most `alarm` when the law holds.
// `rounding` is the relative error of storing a value (2^-8 for bf16, 2^-24 for fp32).
[[nodiscard]] std::vector<Bound> bounds(const Statistics& s, const Law& law, double alarm, double rounding);

// The sample size from which multiplying every value by `factor` is missed with probability at most `miss`.
[[nodiscard]] std::int64_t detectable_size(const Law& law, double factor, double alarm, double miss);

}  // namespace suites::init_laws
