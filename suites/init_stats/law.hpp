// The laws that initial values must follow, as this suite states them: its own copy, on purpose. Nothing here is taken
// from nsa/, so that a changed law there is seen here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nsa/config.hpp"

namespace suites::init_laws {

struct Law {
  enum class Kind { uniform, normal, ones, zeros };
  Kind kind = Kind::zeros;
  double scale = 0;  // uniform: in [-scale, scale]; normal: the standard deviation; mean 0 for both
  std::string from;  // in words: "uniform in +-1/sqrt(fan_in), fan_in 768"

  [[nodiscard]] bool random() const { return kind == Kind::uniform || kind == Kind::normal; }
  [[nodiscard]] double deviation() const;  // standard deviation under the law
  [[nodiscard]] double cdf(double x) const;
  // The largest x * density(x): how far the distribution function moves when every value is rounded by a relative 1.
  [[nodiscard]] double rounding_slope() const;
};

struct Expected {
  std::string name;  // as in named_parameters()
  std::vector<std::int64_t> shape;
  Law law;
  std::string role;  // the name without its layer number: one law for all layers
};

// Every parameter of the model, in no particular order.
[[nodiscard]] std::vector<Expected> expected_parameters(const nsa::ModelConfig& model);

}  // namespace suites::init_laws
