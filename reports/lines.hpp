// A text that grows by lines: what writers for terminal, Markdown and HTML have in common. Private to reports/.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

#include "reports/view.hpp"

namespace reports {

class Lines {
 public:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  void blank() { text_ += '\n'; }
  [[nodiscard]] std::string take() const { return view::utf8(text_); }  // well-formed UTF-8

 protected:
  std::string text_;  // so far
};

}  // namespace reports
