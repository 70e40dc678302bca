// The one JSON type of the project, and the rule for numbers that JSON cannot hold.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace reports {

using Json = nlohmann::ordered_json;

// Finite numbers stay numbers; NaN and the infinities become "NaN", "Infinity", "-Infinity" (nlohmann would silently
// write null). Use it wherever a measured value enters JSON.
[[nodiscard]] Json number(double value);
// The inverse; nullopt when `value` is neither a number nor one of the three words.
[[nodiscard]] std::optional<double> as_number(const Json& value);

// The text of `value`: always valid UTF-8 (ill-formed bytes become U+FFFD) and without a silent null for a non-finite
// number, wherever it sits. `indent` < 0 gives one line. Use it instead of Json::dump(), which throws or loses them.
[[nodiscard]] std::string dump(const Json& value, int indent = -1);

// Of a text that people may have edited: as Json::parse, which throws Json::exception, but a key that stands twice in
// an object is refused by name (std::invalid_argument). Json::parse would keep one of the two values.
[[nodiscard]] Json parse_edited(const std::string& text);

}  // namespace reports
