#include "reports/markdown_text.hpp"

#include <sstream>

#include "reports/view.hpp"

namespace reports::markdown {

std::string md(const std::string& text) {
  std::string out;
  for (const char c : view::one_line(text)) {
    if (c == '|' || c == '*' || c == '`') out += '\\';
    out += c == '<' ? "&lt;" : std::string(1, c);
  }
  return out;
}

// A pipe must be escaped even in code.
std::string code(const std::string& text) {
  std::string out;
  for (const char c : view::one_line(text)) {
    if (c == '|') out += '\\';
    out += c == '`' ? '\'' : c;
  }
  return out.empty() ? out : fmt::format("`{}`", out);
}

// A block whose fence is longer than any run of backticks inside.
void Markdown::block(const std::string& text) {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) fence += '`';
  line("{}", fence);
  std::istringstream lines(text);
  for (std::string one; std::getline(lines, one);) line("{}", view::one_line(one));
  line("{}", fence);
}

}  // namespace reports::markdown
