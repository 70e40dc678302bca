#include "reports/fields.hpp"

#include <fmt/format.h>

#include <cmath>

namespace reports::fields {

namespace {

// A value in a message: one line, cut.
std::string shown(const Json& value) {
  std::string text = dump(value);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

bool absent(const Json& event, std::string_view key) {
  const auto it = event.find(key);
  return it == event.end() || it->is_null();
}

}  // namespace

void reject(const Json& event, std::string_view key, std::string_view allowed) {
  const auto kind = event.find("event");
  const std::string where = kind != event.end() && kind->is_string() ? kind->get<std::string>() + ": " : "";
  const auto it = event.find(key);
  const std::string what = it == event.end() ? "is missing" : "is " + shown(*it);
  throw std::invalid_argument(fmt::format("{}field '{}' {}, allowed: {}", where, key, what, allowed));
}

const Json& object(const Json& event, std::string_view key) {
  const auto it = event.find(key);
  if (it == event.end() || !it->is_object()) reject(event, key, "an object");
  return *it;
}

const Json& array(const Json& event, std::string_view key) {
  const auto it = event.find(key);
  if (it == event.end() || !it->is_array()) reject(event, key, "an array");
  return *it;
}

std::string text(const Json& event, std::string_view key) {
  const auto it = event.find(key);
  if (it == event.end() || !it->is_string() || it->get_ref<const std::string&>().empty()) {
    reject(event, key, "a string that is not empty");
  }
  return it->get<std::string>();
}

std::string prose(const Json& event, std::string_view key) {
  const auto it = event.find(key);
  if (it == event.end() || !it->is_string()) reject(event, key, "a string");
  return it->get<std::string>();
}

bool boolean(const Json& event, std::string_view key) {
  const auto it = event.find(key);
  if (it == event.end() || !it->is_boolean()) reject(event, key, "true or false");
  return it->get<bool>();
}

Json measure(const Json& event, std::string_view key) {
  const auto it = event.find(key);
  if (it == event.end() || !as_number(*it)) reject(event, key, "a number, \"NaN\", \"Infinity\" or \"-Infinity\"");
  return *it;
}

std::uint64_t natural(const Json& event, std::string_view key) {
  const auto it = event.find(key);
  const bool good =
      it != event.end() && it->is_number_integer() && (it->is_number_unsigned() || it->get<std::int64_t>() >= 0);
  if (!good) reject(event, key, "an integer >= 0");
  return it->get<std::uint64_t>();
}

double seconds(const Json& event, std::string_view key) {
  const auto it = event.find(key);
  const double value = it != event.end() && it->is_number() ? it->get<double>() : -1;
  if (!(value >= 0 && std::isfinite(value))) reject(event, key, "seconds, a finite number >= 0");
  return value;
}

std::string text_or(const Json& event, std::string_view key, std::string_view fallback) {
  if (absent(event, key)) return std::string(fallback);
  const auto it = event.find(key);
  if (!it->is_string()) reject(event, key, "a string");
  return it->get<std::string>();
}

bool boolean_or(const Json& event, std::string_view key, bool fallback) {
  return absent(event, key) ? fallback : boolean(event, key);
}

double seconds_or(const Json& event, std::string_view key, double fallback) {
  return absent(event, key) ? fallback : seconds(event, key);
}

Json object_or_empty(const Json& event, std::string_view key) {
  return absent(event, key) ? Json::object() : object(event, key);
}

Json array_or_empty(const Json& event, std::string_view key) {
  return absent(event, key) ? Json::array() : array(event, key);
}

}  // namespace reports::fields
