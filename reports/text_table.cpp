#include "reports/text_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reports/view.hpp"

namespace reports::text {

namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }  // of a character of UTF-8

// -- values

std::string scalar(const Json& value, bool exact) {
  if (exact) return dump(value);
  if (value.is_string()) return value.get<std::string>().empty() ? "\"\"" : value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_array() && value.empty()) return "none";
  return view::value(value);
}

// What compare() puts side by side: settings with their origin, outcomes, causes, checks; else as it is.
std::string in_words(const Json& value, bool exact) {
  const auto has = [&](const char* key) { return value.is_object() && value.contains(key); };
  const auto word = [&](const char* key) { return scalar(value.at(key), exact); };
  if (has("value") && has("origin")) return fmt::format("{} ({})", word("value"), word("origin"));
  if (has("status") && has("reason_code"))
    return value.at("reason_code") == Json("") ? word("status")
                                               : fmt::format("{} ({})", word("status"), word("reason_code"));
  if (has("rank") && has("severity")) return fmt::format("{}. ({})", word("rank"), word("severity"));
  if (has("pass") && has("bound"))
    return fmt::format("{}: {} {}", value.at("pass") == true ? "holds" : "fails", word("comparator"), word("bound"));
  return scalar(value, exact);
}

bool look_alike(const std::vector<std::string>& cells, const std::vector<Json>& values) {
  for (std::size_t i = 0; i < cells.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (cells[i] == cells[j] && values[i] != values[j]) return true;
  return false;
}

// Length of what all of them begin with.
std::size_t common_head(const std::vector<std::string>& cells) {
  std::size_t common = cells.front().size();
  for (const std::string& cell : cells) {
    std::size_t same = 0;
    while (same < std::min(common, cell.size()) && cell[same] == cells.front()[same]) ++same;
    common = same;
  }
  return common;
}

// -- rows

// Of the rows that share a fold the first ones, and how many more there are.
std::vector<Row> folded(const std::vector<Row>& rows) {
  constexpr std::size_t kShown = 3;
  std::map<std::string, std::size_t> all, shown;
  for (const Row& row : rows) ++all[row.fold];
  std::vector<Row> kept;
  for (const Row& row : rows) {
    const std::size_t total = all[row.fold], place = ++shown[row.fold];
    if (row.fold.empty() || total <= kShown + 1 || place <= kShown)
      kept.push_back(row);
    else if (place == kShown + 1)
      kept.push_back({fmt::format("and {} more like these", total - kShown), {}, "", row.group, row.fold});
  }
  return kept;
}

// A group of one is a part of its row's name.
void name_groups(std::vector<Row>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool before = i > 0 && rows[i - 1].group == rows[i].group;
    const bool after = i + 1 < rows.size() && rows[i + 1].group == rows[i].group;
    if (rows[i].group.empty() || before || after) continue;
    rows[i].name = fmt::format("{}: {}", rows[i].group, rows[i].name);
    rows[i].group.clear();
  }
}

std::string line_of(std::size_t indent, const std::string& name, const Row& row,
                    const std::vector<std::size_t>& widths) {
  std::string text = std::string(indent, ' ') + padded(name, widths[0] - std::min(widths[0], indent));
  for (std::size_t i = 0; i + 1 < widths.size(); ++i)
    text += "  " + padded(i < row.cells.size() ? row.cells[i] : "", widths[i + 1]);
  if (!row.note.empty()) text += "  " + row.note;
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

}  // namespace

std::string table(const std::string& title, std::size_t columns, const std::vector<Row>& rows, std::size_t most_rows) {
  constexpr std::size_t kTitle = 2, kRow = 4, kInGroup = 6;  // indents
  if (rows.empty()) return "";
  std::vector<Row> shown = folded(rows);
  const std::size_t left_out = shown.size() - std::min(shown.size(), most_rows);
  shown.resize(shown.size() - left_out);
  name_groups(shown);

  Row head{title, {}};
  for (std::size_t i = 1; i <= columns; ++i) head.cells.push_back(std::to_string(i));
  std::vector<std::size_t> widths(columns + 1, 1);
  widths[0] = kTitle + width(title);
  for (const Row& row : shown) {
    widths[0] = std::max(widths[0], width(row.name) + (row.group.empty() ? kRow : kInGroup));
    for (std::size_t i = 0; i < row.cells.size(); ++i) widths[i + 1] = std::max(widths[i + 1], width(row.cells[i]));
  }
  std::string text = line_of(kTitle, title, head, widths);
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const Row& row = shown[i];
    if (!row.group.empty() && (i == 0 || shown[i - 1].group != row.group))
      text += std::string(kRow, ' ') + row.group + "\n";
    text += line_of(row.group.empty() ? kRow : kInGroup, row.name, row, widths);
  }
  if (left_out > 0) text += fmt::format("    and {} more rows; --json has all\n", left_out);
  return text;
}

std::string safe(const std::string& text, std::size_t bytes) { return view::cut(view::one_line(text), bytes); }

std::size_t width(const std::string& text) {
  return text.size() - static_cast<std::size_t>(std::count_if(text.begin(), text.end(), continues));
}

std::string padded(const std::string& text, std::size_t columns) {
  return text + std::string(columns - std::min(columns, width(text)), ' ');
}

std::vector<std::string> cells(const std::vector<Json>& values, const std::string& absent, std::size_t bytes) {
  const auto written = [&](bool exact) {
    std::vector<std::string> all;
    all.reserve(values.size());
    for (const Json& value : values) all.push_back(value.is_null() ? absent : view::one_line(in_words(value, exact)));
    return all;
  };
  std::vector<std::string> cells = written(false);
  if (look_alike(cells, values)) cells = written(true);

  const std::vector<std::string> whole = cells;
  std::vector<std::string> present;
  for (std::size_t i = 0; i < cells.size(); ++i)
    if (!values[i].is_null()) present.push_back(cells[i]);
  const auto too_long = [&](const std::string& cell) { return cell.size() > bytes; };
  constexpr std::size_t kKept = 8;  // of what all begin with, where that is left out
  const std::size_t common = present.size() < 2 ? 0 : common_head(present);
  const bool cut_head = common > kKept + 3 && std::any_of(present.begin(), present.end(), too_long);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (cut_head && !values[i].is_null()) {
      std::size_t from = common - kKept;
      while (from < cells[i].size() && continues(cells[i][from])) ++from;
      cells[i] = "..." + cells[i].substr(from);
    }
    cells[i] = view::cut(cells[i], bytes);
  }
  return look_alike(cells, values) ? whole : cells;
}

}  // namespace reports::text
