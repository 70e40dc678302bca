#include "reports/json.hpp"

#include <cmath>
#include <limits>

#include "base/json_number.hpp"

namespace reports {

namespace {

bool has_non_finite(const Json& value) {
  if (value.is_number_float()) return !std::isfinite(value.get<double>());
  if (!value.is_structured()) return false;
  for (const auto& item : value) {
    if (has_non_finite(item)) return true;
  }
  return false;
}

void replace_non_finite(Json& value) {
  if (value.is_number_float()) {
    value = number(value.get<double>());
  } else if (value.is_structured()) {
    for (auto& item : value) replace_non_finite(item);
  }
}

}  // namespace

Json number(double value) { return base::json_number<Json>(value); }

std::optional<double> as_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& word = value.get_ref<const std::string&>();
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (word == "Infinity") return std::numeric_limits<double>::infinity();
  if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

std::string dump(const Json& value, int indent) {
  constexpr auto kReplace = Json::error_handler_t::replace;
  if (!has_non_finite(value)) return value.dump(indent, ' ', false, kReplace);
  Json copy = value;
  replace_non_finite(copy);
  return copy.dump(indent, ' ', false, kReplace);
}

}  // namespace reports
