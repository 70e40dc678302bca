#include "reports/html_text.hpp"

namespace reports {

std::string esc(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if ((static_cast<unsigned char>(c) >= ' ' && c != 0x7f) || c == '\n' || c == '\t') out += c;
    }
  }
  return out;
}

}  // namespace reports
