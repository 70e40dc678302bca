// The Markdown that report.md and fleet.md are written in: text that cannot become markup. Private to reports/.
#pragma once

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "reports/lines.hpp"

namespace reports::markdown {

[[nodiscard]] std::string md(const std::string& text);    // running text: no HTML, no line breaks, no table borders
[[nodiscard]] std::string code(const std::string& text);  // inline code, also inside a table

class Markdown : public Lines {
 public:
  void title(const std::string& text) { line("## {}\n", text); }
  void table(const std::vector<std::string>& head) {
    row(head);
    row(std::vector<std::string>(head.size(), "---"));
  }
  void row(const std::vector<std::string>& cells) { line("| {} |", fmt::join(cells, " | ")); }
  void block(const std::string& text);
};

}  // namespace reports::markdown
