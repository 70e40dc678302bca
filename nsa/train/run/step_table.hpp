// A CSV table with one row a step: a header, and rows with growing step numbers. A run that goes on from step n cuts
// what lies beyond n, so that no row stands twice and none is missing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nsa/train/files.hpp"

namespace nsa::train {

class StepTable {
 public:
  using Tell = std::function<void(const std::string&)>;

  // `columns` after the first one, which is "step". Rows beyond `last_step` and a last line that is cut off are
  // removed. Damaged lines (no row, a row of another length, a step that does not grow) are left out and told, one by
  // one up to a few; the file as it was stays as "<name>.damaged". One with another header is set aside as "<name>.old"
  // and told. Throws FileError, as all of these.
  // A gap between the last row and `last_step` that is wider than any between two rows is told.
  StepTable(const std::filesystem::path& file, const std::vector<std::string>& columns, std::int64_t last_step,
            const Tell& tell = {});
  // As many as columns; nothing is an empty field.
  [[nodiscard]] bool was_empty() const { return was_empty_; }  // missing, or without a line below the header
  void append(std::int64_t step, std::span<const std::optional<double>> values);
  void sync() { file_.sync(); }
  void check() const { file_.check(); }  // throws FileLost

 private:
  std::size_t columns_;
  bool was_empty_;  // before file_, which makes it
  AppendFile file_;
};

}  // namespace nsa::train
