// The product's stream of batches with an ear on it.
#pragma once

#include <memory>
#include <vector>

#include "nsa/train/batch.hpp"

namespace suites::training_cases {

// Passes everything on to `source` and keeps what came, in order; a seek() forgets nothing (the trainer goes back so
// after a stop). With `draws`, every batch also takes a number from torch's generator, as a model with dropout would,
// so that it shows whether that one goes on.
class RecordedStream : public nsa::train::BatchStream {
 public:
  // `expected` batches of `rows` x `width` tokens: memory for them is taken here, so that recording is no growth.
  struct Room {
    std::int64_t batches = 0, rows = 0, width = 0;
  };
  RecordedStream(std::unique_ptr<nsa::train::BatchStream> source, Room room, bool draws = false);

  nsa::train::Batch next() override;
  [[nodiscard]] nlohmann::json position() const override { return source_->position(); }
  void seek(const nlohmann::json& position) override { source_->seek(position); }

  // [batches, rows, width] int32. A batch of another size, and one beyond the room, is passed on and not kept.
  [[nodiscard]] at::Tensor tokens() const;
  [[nodiscard]] const std::vector<double>& drawn() const { return drawn_; }

 private:
  std::unique_ptr<nsa::train::BatchStream> source_;
  at::Tensor tokens_;
  std::int64_t kept_ = 0;
  bool draws_;
  std::vector<double> drawn_;
};

}  // namespace suites::training_cases
