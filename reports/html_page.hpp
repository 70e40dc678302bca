// The page that report.html and fleet.html are laid out on: one file that needs nothing else (no scripts, fonts or
// images from elsewhere), in the reader's light or dark colours. Private to reports/.
#pragma once

#include <string>
#include <vector>

#include "reports/lines.hpp"
#include "reports/status.hpp"

namespace reports::html {

class Html : public Lines {
 public:
  void begin(const std::string& title);  // head, style and the begin of the body
  // `head` and `cells` are already escaped.
  void table(const std::vector<std::string>& head);
  void row(const std::vector<std::string>& cells);
  void end_table();
  [[nodiscard]] std::string end();  // the whole page, well-formed UTF-8

 private:
  std::vector<std::string> head_;  // of the table that is being written
};

// Classes of colour: good, mild, bad, none.
[[nodiscard]] const char* tone(Status status);
[[nodiscard]] const char* tone(Severity severity);
[[nodiscard]] const char* tone(Verdict verdict);

[[nodiscard]] std::string status_word(Status status);
// What became of a case, for those who do not tell colours apart.
[[nodiscard]] const char* mark(Status status);

// Escaped text. Long names and paths may break behind their own marks, and so need not break within a word; what has no
// marks, a hash for instance, may break where no word reaches.
[[nodiscard]] std::string breakable(const std::string& text);
[[nodiscard]] std::string code_element(const std::string& text);

}  // namespace reports::html
