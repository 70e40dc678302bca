// Opens the data of a run: a text, a JSONL file or random tokens, as a stream of batches.
//
//   text        a token is a byte; documents are its paragraphs (text_stream.hpp)
//   *.jsonl     a document a line, its "text" in UTF-8 bytes (jsonl.hpp)
//   synthetic   independent uniform tokens from a generator of the stream's own
//
// Sequential: the tokens of the split end to end, row r from token r*S to r*S+S: every token but the first is predicted
// once, none is left out, a document that does not fit goes on in the next row. Shuffled: the same rows, each once a
// pass, in an order that seed and pass decide and nobody stores (permutation.hpp); the shorter row that may be left at
// the end of the data stays the last. Random crops: rows that start anywhere in the split of a text; they never end.
// The rows and their order do not depend on the batch size, in any order. Files are read piece by piece, never whole;
// only the bytes that were there on opening.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "nsa/train/batch.hpp"

namespace nsa::train {

// Training and validation never share a token. Text: validation is the last `validation_share` of the bytes. JSONL: the
// lines whose number hashes below the share; seed and content play no part. Synthetic: another generator.
enum class Split { train, validation };
enum class Order { sequential, random_crops, shuffled };

struct StreamOptions {
  std::string data;             // path of a text or of a .jsonl file, or "synthetic"
  std::int64_t batch_size = 1;  // B
  std::int64_t seq_len = 2048;  // S; rows have S+1 tokens
  std::uint64_t seed = 1337;    // of random crops, the shuffled order and synthetic tokens
  Split split = Split::train;
  double validation_share = 0.0;    // [0, 1); above 0 for the validation split
  bool packed = false;              // with cu_seqlens; B must be 1. Otherwise a JSONL document ends with a newline
  Order order = Order::sequential;  // synthetic tokens have none
  std::int64_t epochs = 1;          // passes over the data, 0: without an end (epochs.hpp); random crops have none
  bool skip_bad_lines = false;      // JSONL: count them (position()["skipped_lines"]) instead of throwing
  std::int64_t max_line_bytes = 64 << 20;  // JSONL: a longer line is a bad one
  std::int64_t vocab = 256;                // synthetic tokens are below it
};

// Throws std::invalid_argument for options that make no sense together, std::runtime_error (path, reason) for a file
// that is missing, unreadable, empty or, for random crops, shorter than one row.
[[nodiscard]] std::unique_ptr<BatchStream> open_stream(const StreamOptions& options);

}  // namespace nsa::train
