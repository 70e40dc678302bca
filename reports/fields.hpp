// Reading an event's fields with errors that name the kind, the field, the value and what is allowed.
// Private to reports/.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "reports/json.hpp"

namespace reports::fields {

// "check: field 'pass' is 3, allowed: true or false"
[[noreturn]] void reject(const Json& event, std::string_view key, std::string_view allowed);

// What `read` returns; where it throws std::invalid_argument, the place stands before the message.
template <typename Read>
auto within(const std::string& place, Read read) {
  try {
    return read();
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(place + ": " + error.what());
  }
}

// Required fields: throw std::invalid_argument when absent or of another type.
[[nodiscard]] const Json& object(const Json& event, std::string_view key);
[[nodiscard]] const Json& array(const Json& event, std::string_view key);
[[nodiscard]] std::string text(const Json& event, std::string_view key);   // not empty: an id, a word
[[nodiscard]] std::string prose(const Json& event, std::string_view key);  // for readers; may be empty
[[nodiscard]] bool boolean(const Json& event, std::string_view key);
[[nodiscard]] Json measure(const Json& event, std::string_view key);  // number, or a word for a non-finite one
[[nodiscard]] std::uint64_t natural(const Json& event, std::string_view key);
[[nodiscard]] double seconds(const Json& event, std::string_view key);  // finite, >= 0

// Optional ones: absent or null gives the fallback, another type throws all the same.
[[nodiscard]] std::string text_or(const Json& event, std::string_view key, std::string_view fallback);
[[nodiscard]] bool boolean_or(const Json& event, std::string_view key, bool fallback);
[[nodiscard]] double seconds_or(const Json& event, std::string_view key, double fallback);
[[nodiscard]] Json object_or_empty(const Json& event, std::string_view key);
[[nodiscard]] Json array_or_empty(const Json& event, std::string_view key);

}  // namespace reports::fields
