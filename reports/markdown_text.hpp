// The Markdown that report.md and fleet.md are written in: text that cannot become markup. Private to reports/.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace reports::markdown {

[[nodiscard]] std::string md(const std::string& text);    // running text: no HTML, no line breaks, no table borders
[[nodiscard]] std::string code(const std::string& text);  // inline code, also inside a table

class Markdown {
 public:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  void blank() { text_ += '\n'; }
  void title(const std::string& text) { line("## {}\n", text); }
  void table(const std::vector<std::string>& head) {
    row(head);
    row(std::vector<std::string>(head.size(), "---"));
  }
  void row(const std::vector<std::string>& cells) { line("| {} |", fmt::join(cells, " | ")); }
  void block(const std::string& text);
  [[nodiscard]] std::string take();  // well-formed UTF-8

 private:
  std::string text_;
};

}  // namespace reports::markdown
