// Pictures and tables for readers, carried by facts of the journal (Context::fact). Two shapes of a fact are shown as
// such; every other one stays JSON:
//   a chart   {"chart": TITLE, "x": AXIS, "y": AXIS, "series": [{"name": N, "x": [...], "y": [...]}, ...]}
//             AXIS = {"label": "S", "unit": "tokens", "log": true}; numbers, or the words for the non-finite
//   a table   [{"column": scalar, ...}, ...]: at least one row; the columns are the keys, in the order of
//             their first use
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/json.hpp"

namespace reports {

struct Axis {
  std::string label, unit;
  bool log = false;  // base 2 for x, base 10 for y; ignored when a value is not positive
};
struct Series {
  std::string name;
  std::vector<double> x, y;  // of one length; x is finite; a y that is not is drawn as a cross at the top, not left out
};
struct Chart {
  std::string title;
  Axis x, y;
  std::vector<Series> series;
};

[[nodiscard]] Json to_json(const Chart& chart);
[[nodiscard]] std::optional<Chart> chart_of(const Json& fact);  // nothing when it is no chart, or a malformed one
// An <svg> element for a page that defines the classes axis, grid, bad and c0 ... c5 (colours of series).
[[nodiscard]] std::string svg(const Chart& chart);

struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};
[[nodiscard]] std::optional<Table> table_of(const Json& fact);
// The points of a chart as rows: x, then one column a series.
[[nodiscard]] Table table_of(const Chart& chart);
// At most `limit` rows, the first and the last among them, evenly spread.
[[nodiscard]] Table thinned(Table table, std::size_t limit);

}  // namespace reports
