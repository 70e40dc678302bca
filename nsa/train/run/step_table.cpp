#include "nsa/train/run/step_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "base/parse_number.hpp"

namespace nsa::train {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kTold = 5, kShown = 60;  // damaged lines, letters of one

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (std::size_t end = 0; (end = line.find(',')) != std::string_view::npos; line.remove_prefix(end + 1))
    fields.push_back(line.substr(0, end));
  fields.push_back(line);
  return fields;
}

// The step of a row that is whole.
std::optional<std::int64_t> step_of_row(std::string_view line, std::size_t columns) {
  const auto fields = fields_of(line);
  const bool whole =
      fields.size() == columns + 1 && std::all_of(fields.begin() + 1, fields.end(), [](std::string_view field) {
        return field.empty() || base::parse_number<double>(field);
      });
  return whole ? base::parse_number<std::int64_t>(fields.front()) : std::nullopt;
}

struct Rows {
  std::string kept;                              // each with its newline
  std::vector<std::string> damaged;              // in words
  std::int64_t count = 0, last = 0, widest = 0;  // of those kept; the last one's step, and the most steps between two
};

// The whole rows of `text`, whose first line is line 2 of its file, up to `last_step` and in order.
Rows rows_up_to(std::string_view text, std::size_t columns, std::int64_t last_step) {
  Rows rows;
  std::int64_t before = -1;
  for (std::size_t number_of_line = 2; !text.empty(); ++number_of_line) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const auto step = step_of_row(line, columns);
    if (end == std::string_view::npos) {  // cut off in the middle; told only when it stood before the checkpoint
      const auto begun = base::parse_number<std::int64_t>(line.substr(0, line.find(',')));
      if (line.find(',') != std::string_view::npos && begun && *begun <= last_step)
        rows.damaged.push_back(fmt::format("line {} is cut off: {}", number_of_line, line.substr(0, kShown)));
      break;
    }
    if (!step || (*step <= last_step && *step <= before)) {
      rows.damaged.push_back(fmt::format("line {} {}: {}", number_of_line,
                                         step ? "goes back in the steps" : "is no row", line.substr(0, kShown)));
    } else if (*step <= last_step) {
      rows.kept += text.substr(0, end + 1);
      if (rows.count++ > 0) rows.widest = std::max(rows.widest, *step - before);
      rows.last = before = *step;
    }
    text.remove_prefix(end + 1);
  }
  return rows;
}

void tell_damage(const fs::path& file, std::vector<std::string> damaged, const StepTable::Tell& tell) {
  const std::size_t all = damaged.size();
  damaged.resize(std::min(all, kTold));
  if (tell)
    tell(fmt::format("{}: {}{}; left out, the file as it was is {}.damaged", file.string(), fmt::join(damaged, "; "),
                     all > kTold ? fmt::format("; and {} more", all - kTold) : "", file.filename().string()));
}

bool has_no_row(const fs::path& file) {
  if (!fs::exists(file)) return true;
  const std::string text = read_text(file);
  const std::size_t header = text.find('\n');
  return header == std::string::npos || header + 1 == text.size();
}

// The file as it should be before the next row is appended.
fs::path prepared(const fs::path& file, const std::vector<std::string>& columns, std::int64_t last_step,
                  const StepTable::Tell& tell) {
  const std::string header = fmt::format("step,{}\n", fmt::join(columns, ","));
  Rows rows;
  if (fs::exists(file)) {
    const std::string text = read_text(file);
    if (text.starts_with(header)) {
      rows = rows_up_to(std::string_view(text).substr(header.size()), columns.size(), last_step);
      // How often rows come is a setting, which may have changed: only a gap wider than any before is told.
      if (tell && rows.count > 1 && last_step - rows.last > rows.widest)
        tell(
            fmt::format("{} ends at step {}, the checkpoint is of step {}: rows after it are missing, or were "
                        "not asked for",
                        file.string(), rows.last, last_step));
      if (header.size() + rows.kept.size() == text.size()) return file;
      if (!rows.damaged.empty()) {
        fs::copy_file(file, file.string() + ".damaged", fs::copy_options::overwrite_existing);
        tell_damage(file, rows.damaged, tell);
      }
    } else if (text.find('\n') != std::string::npos) {
      fs::rename(file, file.string() + ".old");
      if (tell)
        tell(fmt::format("{} has other columns than this build writes; it is {}.old now", file.string(),
                         file.filename().string()));
    }
  }
  base::write_whole(file, header + rows.kept);
  return file;
}

}  // namespace

StepTable::StepTable(const fs::path& file, const std::vector<std::string>& columns, std::int64_t last_step,
                     const Tell& tell)
    : columns_(columns.size()), was_empty_(has_no_row(file)), file_(prepared(file, columns, last_step, tell)) {}

void StepTable::append(std::int64_t step, std::span<const std::optional<double>> values) {
  if (values.size() != columns_)
    throw std::logic_error(fmt::format("a row of {} values for {} columns", values.size(), columns_));
  std::string row = std::to_string(step);
  for (const auto& value : values) row += value ? fmt::format(",{}", *value) : ",";
  file_.append(row + "\n");
}

}  // namespace nsa::train
