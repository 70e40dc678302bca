// Texts that others wrote.
#pragma once

#include <string>
#include <string_view>

namespace base {

// Without its line break; all of a text that has one line. LibTorch's errors have a stack behind it.
[[nodiscard]] inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace base
