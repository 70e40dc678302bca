#include "nsa/train/run/step_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <stdexcept>

namespace nsa::train {

namespace fs = std::filesystem;

namespace {

// The rows of `text` up to `last_step`, whole and in order.
std::string kept_rows(std::string_view text, std::int64_t last_step) {
  std::string kept;
  std::int64_t before = -1;
  for (std::size_t end = 0; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    std::int64_t step = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + end, step);
    if (error != std::errc{} || *rest != ',' || step <= before || step > last_step) break;
    kept += text.substr(0, end + 1);
    before = step;
  }
  return kept;
}

// The file as it should be before the next row is appended.
fs::path prepared(const fs::path& file, const std::string& header, std::int64_t last_step) {
  std::string rows;
  if (fs::exists(file)) {
    const std::string text = read_text(file);
    if (text.starts_with(header)) {
      rows = kept_rows(std::string_view(text).substr(header.size()), last_step);
      if (header.size() + rows.size() == text.size()) return file;
    } else if (text.find('\n') != std::string::npos) {
      fs::rename(file, file.string() + ".old");
    }
  }
  AtomicFile fresh(file);
  fresh.write(header + rows);
  fresh.commit();
  return file;
}

}  // namespace

StepTable::StepTable(const fs::path& file, const std::vector<std::string>& columns, std::int64_t last_step)
    : columns_(columns.size()), file_(prepared(file, fmt::format("step,{}\n", fmt::join(columns, ",")), last_step)) {}

void StepTable::append(std::int64_t step, std::span<const double> values) {
  if (values.size() != columns_)
    throw std::logic_error(fmt::format("a row of {} values for {} columns", values.size(), columns_));
  file_.append(fmt::format("{},{}\n", step, fmt::join(values, ",")));
}

}  // namespace nsa::train
