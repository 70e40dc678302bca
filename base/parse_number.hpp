// A number in words.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace base {

// The whole of `text` as a decimal number, the same in every locale; nothing where anything else stands in it or the
// type cannot hold it. There is no '+' and no space. A floating-point type takes "inf" and "nan" too.
template <typename Number>
[[nodiscard]] std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace base
