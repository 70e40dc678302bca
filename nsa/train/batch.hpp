// What a training step eats, and where it comes from: batches of tokens out of a stream whose position can be saved.
#pragma once

#include <nlohmann/json.hpp>

#include "nsa/ops.hpp"

namespace nsa::train {

struct Batch {
  // [b, s+1] int64 on the CPU: s+1 tokens of which s are predicted. b = B and s = S but at the end of the data, where
  // first the whole rows that are left come as a batch of fewer rows (b < B), and then what is left as one shorter row
  // (b = 1, 1 <= s < S). Undefined at the end of the data, and so again at every later call.
  at::Tensor tokens;
  // Packed batches (b = 1): the documents, or their pieces, of all s+1 tokens, the one that is only predicted included.
  // None is empty. At least one token is predicted: a row of one-token documents is passed over.
  CuSeqlens cu_seqlens;
};

class BatchStream {
 public:
  BatchStream() = default;
  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;
  virtual ~BatchStream() = default;
  // Throws std::runtime_error (path, line, reason) for data that cannot be read; the position is then unchanged.
  virtual Batch next() = 0;
  // Of the batch that next() would give: with it a resumed run goes on with the very next batch. A JSON object that
  // says besides what the stream reads (file size and fingerprint, split, seed, ...), so that seek() can tell.
  [[nodiscard]] virtual nlohmann::json position() const = 0;
  // Throws std::invalid_argument naming all that does not fit (other file size, other seed, other seq_len, ...) and
  // then leaves the stream where it is.
  virtual void seek(const nlohmann::json& position) = 0;
};

}  // namespace nsa::train
