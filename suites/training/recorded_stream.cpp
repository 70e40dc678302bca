#include "suites/training/recorded_stream.hpp"

#include <ATen/ATen.h>

namespace suites::training_cases {

RecordedStream::RecordedStream(std::unique_ptr<nsa::train::BatchStream> source, Room room, bool draws)
    : source_(std::move(source)), tokens_(at::zeros({room.batches, room.rows, room.width}, at::kInt)), draws_(draws) {
  if (draws_) drawn_.reserve(static_cast<std::size_t>(room.batches));
}

nsa::train::Batch RecordedStream::next() {
  nsa::train::Batch batch = source_->next();
  if (!batch.tokens.defined()) return batch;
  if (draws_) drawn_.push_back(at::rand({1}, at::kDouble).item<double>());
  if (kept_ < tokens_.size(0) && batch.tokens.sizes() == tokens_[kept_].sizes()) tokens_[kept_++].copy_(batch.tokens);
  return batch;
}

at::Tensor RecordedStream::tokens() const { return tokens_.narrow(0, 0, kept_); }

}  // namespace suites::training_cases
