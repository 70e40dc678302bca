#include "suites/training/repetition.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "suites/oracle/compare.hpp"

namespace suites::training_cases {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// As a share of `a`; 0 for the same number, or two NaN.
double share(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double difference = std::abs(a - b) / std::abs(a);
  return std::isfinite(difference) ? difference : kInfinity;
}

}  // namespace

std::vector<std::string> differences(const nsa::train::TrainState& a, const nsa::train::TrainState& b,
                                     std::string_view part) {
  std::vector<std::string> found;
  for (const auto& [name, tensor] : a.tensors) {
    if (!name.starts_with(part)) continue;
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end() || !oracle::same_bits(tensor, other->second)) found.push_back(name);
  }
  for (const auto& [name, tensor] : b.tensors) {
    if (name.starts_with(part) && !a.tensors.contains(name)) found.push_back(name);
  }
  return found;
}

double spread(const std::vector<nsa::train::StepReport>& a, const std::vector<nsa::train::StepReport>& b,
              std::size_t from) {
  double worst = a.size() == b.size() ? 0 : kInfinity;
  for (std::size_t i = from; i < std::min(a.size(), b.size()); ++i) {
    worst = std::max({worst, share(a[i].loss, b[i].loss), share(a[i].grad_norm, b[i].grad_norm)});
    if (a[i].lr != b[i].lr) worst = kInfinity;
  }
  return worst;
}

}  // namespace suites::training_cases
