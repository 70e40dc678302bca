// The documents of a JSONL file: one a line, a JSON object whose "text" is a string. A token is a byte of its UTF-8.
#pragma once

#include <cstdint>
#include <string>

#include "nsa/train/lines.hpp"
#include "nsa/train/stream.hpp"

namespace nsa::train {

// Whether document `index` (its line's number, from 0) is held out. A hash of the number alone: neither seed nor
// content nor bad lines before it move a document from one split to the other.
[[nodiscard]] bool is_validation(std::int64_t index, double share);

// Walks through the documents of one split. A bad line (too long, no JSON, no text) throws std::runtime_error with
// file:line and reason, or is counted and passed over (skip_bad_lines); a line of the other split is not looked at.
class JsonlReader {
 public:
  // Where a line begins: what a walk needs to go on from it.
  struct Place {
    std::int64_t byte = 0, line = 0, skipped = 0;  // skipped: bad lines before it
  };

  explicit JsonlReader(const StreamOptions& options);
  JsonlReader(const JsonlReader&) = delete;  // its lines refer to its file
  JsonlReader& operator=(const JsonlReader&) = delete;
  // To the next document of the split, or past the last one (false). After an exception the place is unchanged.
  bool next();
  [[nodiscard]] const std::string& text() const { return text_; }  // of the document; empty before and after all
  [[nodiscard]] Place place() const { return place_; }             // of the document; of what comes next without one
  // Without a document; next() looks for one from there on.
  void seek(const Place& place);

  [[nodiscard]] const DataFile& file() const { return file_; }

 private:
  [[nodiscard]] std::string text_of(const Line& line) const;  // throws std::runtime_error with the reason

  StreamOptions options_;
  DataFile file_;
  LineReader lines_;
  Place place_, next_;
  std::string text_;
};

}  // namespace nsa::train
