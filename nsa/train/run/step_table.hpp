// A CSV table with one row a step: a header, and rows with growing step numbers. A run that goes on from step n cuts
// what lies beyond n, so that no row stands twice and none is missing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "nsa/train/files.hpp"

namespace nsa::train {

class StepTable {
 public:
  // `columns` after the first one, which is "step". Rows beyond `last_step` and a last line that is cut off are
  // removed; a file with another header is set aside as "<name>.old". Throws FileError, as all of these.
  StepTable(const std::filesystem::path& file, const std::vector<std::string>& columns, std::int64_t last_step);
  void append(std::int64_t step, std::span<const double> values);  // as many as columns
  void sync() { file_.sync(); }

 private:
  std::size_t columns_;
  AppendFile file_;
};

}  // namespace nsa::train
