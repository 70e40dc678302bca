// The batches that a run must read, told a second time: written from the words of nsa/train/stream.hpp alone, by a few
// lines that use none of its readers. Whole files in memory; for the small files that a case makes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "nsa/config.hpp"

namespace suites::training_cases {

struct PlainBatch {
  std::vector<std::vector<std::int64_t>> rows;
  std::vector<std::int64_t> cu_seqlens;  // of a packed batch: where documents begin, and the end of the row; else empty

  bool operator==(const PlainBatch&) const = default;
};

// The batch of these rows; null when there is none.
[[nodiscard]] const PlainBatch* with_rows_of(const PlainBatch& batch, const std::vector<PlainBatch>& among);

// One part of the data: its tokens end to end, and where its documents begin.
struct PlainSplit {
  std::string tokens;  // a byte each
  std::vector<std::size_t> begins;

  // Of one pass, in the order of the file.
  [[nodiscard]] std::vector<PlainBatch> batches(const nsa::TrainConfig& config) const;
};

[[nodiscard]] std::string bytes_of(const std::vector<std::int64_t>& row);
// The beginning of a row for the reader, and where in the split it stands.
[[nodiscard]] std::string shown(const std::vector<std::int64_t>& row, const PlainSplit& split);

struct PlainData {
  // A text, whose validation part are the last bytes and whose documents are its paragraphs, or a .jsonl, where a hash
  // of the line's number decides. Throws std::runtime_error for a file that is missing, empty, or has a line without
  // "text", unless such lines are passed over (skip_bad_lines).
  explicit PlainData(const nsa::TrainConfig& config);

  // Whether a row has text of validation alone: a stretch of it, or one of its documents. A short document may stand in
  // training as well and proves nothing.
  [[nodiscard]] bool holds_validation(const std::vector<std::int64_t>& row) const;

  PlainSplit training, validation;
};

}  // namespace suites::training_cases
