// The lines of a file, one at a time, in bounded memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nsa/train/data_file.hpp"

namespace nsa::train {

struct Line {
  std::string text;         // without its newline; what was kept of it when it is too long
  std::int64_t begin = 0;   // byte in the file
  std::int64_t length = 0;  // bytes, the newline not counted
};

class LineReader {
 public:
  // Of a line longer than `longest` bytes only its length is kept. The file must outlive the reader.
  LineReader(const DataFile& file, std::int64_t longest);
  // The next line; the last needs no newline. Nothing at the end of the file. Throws as DataFile::read.
  std::optional<Line> next();
  // The next line begins at `byte`.
  void seek(std::int64_t byte) { at_ = byte; }
  [[nodiscard]] std::int64_t at() const { return at_; }

 private:
  void fill();  // the chunk that holds the byte at_

  const DataFile& file_;
  std::int64_t longest_;
  std::int64_t at_ = 0;
  std::int64_t chunk_begin_ = 0;
  std::vector<std::uint8_t> chunk_;
};

}  // namespace nsa::train
