// The analytic count of what a training step allocates: every tensor that the method names, once in the forward pass
// and once for its gradient. What a backend allocates besides (temporaries in fp32, copies into another layout) makes
// the measured figure a small multiple of it; a large multiple is somebody's mistake.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nsa/config.hpp"
#include "nsa/route.hpp"
#include "reports/json.hpp"

namespace suites::throughput_cases {

struct StepCount {
  std::vector<std::pair<std::string, double>> parts;  // bytes of a whole step

  [[nodiscard]] double total() const;
  [[nodiscard]] reports::Json to_json() const;
};
[[nodiscard]] StepCount count_step(const nsa::Config& config, const nsa::Route& route);

// Measured over counted on the healthy product: 2.06 on an H200 (m7c_125m, bf16), see README.md.
inline constexpr double kAllowedRatio = 2.6;

}  // namespace suites::throughput_cases
