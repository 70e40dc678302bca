// Batches of a text whose tokens are its bytes, read row by row: in the order of the file, in an order that seed and
// pass decide, or at random places.
//
// Note [Paragraphs]: a document begins at the first byte of the text and at every byte that is no white space (space,
// tab, CR, LF) and follows white space with two newlines or more. So the blank lines between two paragraphs belong to
// the first of them, no byte is left out, CRLF needs no care, and whether a byte begins a document can be told from the
// bytes before it: a row at any place of the file knows its documents.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nsa/train/data_file.hpp"
#include "nsa/train/epochs.hpp"
#include "nsa/train/stream.hpp"

namespace nsa::train {

// Newlines in the white space that ends `bytes`.
[[nodiscard]] int trailing_newlines(std::span<const std::uint8_t> bytes);
// Where documents begin in `row`, after its first byte; `newlines` as above, of the bytes before the row.
[[nodiscard]] std::vector<std::int32_t> paragraph_begins(std::span<const std::uint8_t> row, int newlines);

class TextStream : public PassStream {
 public:
  // Throws as open_stream.
  explicit TextStream(const StreamOptions& options);
  Batch next() override;
  [[nodiscard]] nlohmann::json position() const override;
  void seek(const nlohmann::json& position) override;
  void begin_pass(std::int64_t epoch) override;  // random crops go on instead: they have no passes

 private:
  struct Rows {
    std::vector<std::int64_t> starts;
    std::int64_t length = 0;
  };
  Rows take_rows();  // and goes on; no start at the end of the data
  Rows take_crops();
  [[nodiscard]] std::int64_t row_length(std::int64_t row) const;  // below 2: there is none
  [[nodiscard]] std::int64_t last_row() const;                    // the first that there is not
  // The row at this place of the pass: whole rows are shuffled, a shorter one stays the last.
  [[nodiscard]] std::int64_t row_at(std::int64_t place) const;
  [[nodiscard]] int newlines_before(std::int64_t byte) const;

  StreamOptions options_;
  DataFile file_;
  std::int64_t begin_ = 0, end_ = 0;  // of the split, in bytes
  nlohmann::json identity_;
  std::int64_t row_ = 0;  // rows of this pass that were given
  std::int64_t epoch_ = 0;
  std::uint64_t state_ = 0;  // random crops
};

}  // namespace nsa::train
