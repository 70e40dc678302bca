// Numbers that JSON has no form for, as words: "NaN", "Infinity", "-Infinity".
#pragma once

#include <cmath>

namespace base {

// `Json`: of either nlohmann type.
template <typename Json>
[[nodiscard]] Json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

}  // namespace base
