// Tables of the comparison for a terminal: values side by side that can be told apart, rows that fold. Private to
// reports/.
#pragma once

#include <string>
#include <vector>

#include "reports/json.hpp"

namespace reports::text {

struct Row {
  std::string name;
  std::vector<std::string> cells;  // one a column
  std::string note = {};           // behind them
  std::string group = {};          // what rows in a row have in common: their name is "GROUP: NAME"
  std::string fold = {};           // of the rows with this word only some are shown; "": all
};

// Lines, each with its end: the title with the numbers 1, 2, ... above the columns, then at most `rows` rows.
[[nodiscard]] std::string table(const std::string& title, std::size_t columns, const std::vector<Row>& rows,
                                std::size_t most_rows);

// One line, cut, without control characters: a run's text brings no escape sequence to the terminal.
[[nodiscard]] std::string safe(const std::string& text, std::size_t bytes);
[[nodiscard]] std::size_t width(const std::string& text);  // characters, not bytes; each is taken for one column wide
[[nodiscard]] std::string padded(const std::string& text, std::size_t width);

// The values of a row side by side; `absent` for null. No two that differ look alike: what rounding would make equal is
// written out, and what is cut keeps the place where they part.
[[nodiscard]] std::vector<std::string> cells(const std::vector<Json>& values, const std::string& absent,
                                             std::size_t bytes);

}  // namespace reports::text
