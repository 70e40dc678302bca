#include "suites/implementation/fields.hpp"

#include <fmt/format.h>

#include <limits>

#include "suites/implementation/error.hpp"

namespace suites::implementation {

namespace {

// `one` of each element of the list at `key`; nullopt from it is refused.
template <typename T, typename One>
std::vector<T> list(const Fields& fields, const char* key, const char* allowed, const One& one) {
  const Json& values = fields.at(key);
  if (!values.is_array()) fields.refuse(key, allowed);
  std::vector<T> result;
  for (const Json& value : values) {
    const std::optional<T> element = one(value);
    if (!element) fields.refuse(key, allowed);
    result.push_back(*element);
  }
  return result;
}

std::optional<double> as_number(const Json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::optional<std::string> as_text(const Json& value) {
  return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

}  // namespace

Fields::Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object())
    throw ImplementationError(
        "protocol", fmt::format("{} is {}; allowed: an object", where_, readable(reports::dump(object), kShownBytes)));
}

void Fields::refuse(const std::string& key, const char* allowed) const {
  const std::string found =
      object_.contains(key) ? "is " + readable(reports::dump(object_.at(key)), kShownBytes) : "is not there";
  throw ImplementationError("protocol", fmt::format("{}: {} {}; allowed: {}", where_, key, found, allowed));
}

bool Fields::has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

const Json& Fields::at(const char* key) const {
  if (!object_.contains(key)) refuse(key, "a value");
  return object_.at(key);
}

Fields Fields::object(const char* key) const { return {at(key), fmt::format("{}: {}", where_, key)}; }

std::string Fields::text(const char* key) const {
  const auto text = as_text(at(key));
  if (!text) refuse(key, "a text");
  return *text;
}

bool Fields::truth(const char* key) const {
  if (!at(key).is_boolean()) refuse(key, "true or false");
  return at(key).get<bool>();
}

std::int64_t Fields::integer(const char* key) const {
  const auto value = as_integer(at(key));
  if (!value) refuse(key, "a whole number of 64 bits");
  return *value;
}

std::vector<std::int64_t> Fields::integers(const char* key) const {
  return list<std::int64_t>(*this, key, "a list of whole numbers", as_integer);
}

double Fields::number(const char* key) const {
  const auto value = as_number(at(key));
  if (!value) refuse(key, "a number");
  return *value;
}

std::vector<double> Fields::numbers(const char* key) const {
  return list<double>(*this, key, "a list of numbers", as_number);
}

std::vector<std::string> Fields::texts(const char* key) const {
  return list<std::string>(*this, key, "a list of texts", as_text);
}

std::optional<std::int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {  // a kind of integer, which get() would wrap
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  return value.is_number_integer() ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

}  // namespace suites::implementation
