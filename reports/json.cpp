#include "reports/json.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <vector>

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

Json parse_edited(const std::string& text) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      twice = parsed.get<std::string>();
    return true;
  };
  Json json = Json::parse(text, watch);
  if (!twice.empty())
    throw std::invalid_argument(fmt::format("key '{}' stands twice in one object", twice.substr(0, 60)));
  return json;
}

}  // namespace reports
