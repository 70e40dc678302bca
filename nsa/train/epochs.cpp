#include "nsa/train/epochs.hpp"

#include <fmt/format.h>

#include <limits>
#include <stdexcept>

#include "nsa/train/position.hpp"

namespace nsa::train {

Epochs::Epochs(std::unique_ptr<PassStream> source, std::int64_t epochs) : source_(std::move(source)), epochs_(epochs) {
  if (!source_ || epochs < 0) throw std::invalid_argument(fmt::format("epochs: {} passes over a source", epochs));
  source_->begin_pass(0);
}

Batch Epochs::next() {
  Batch batch = source_->next();
  if (batch.tokens.defined() || (epochs_ != 0 && epoch_ + 1 >= epochs_)) return batch;
  // The pass is over. Should the next one fail to begin, or hold nothing, this is still the end of the one before.
  const nlohmann::json end = source_->position();
  try {
    source_->begin_pass(epoch_ + 1);
    batch = source_->next();
  } catch (...) {
    source_->begin_pass(epoch_);
    source_->seek(end);
    throw;
  }
  if (batch.tokens.defined()) {
    ++epoch_;
  } else {
    source_->begin_pass(epoch_);
    source_->seek(end);
  }
  return batch;
}

nlohmann::json Epochs::position() const {
  nlohmann::json position = source_->position();
  position["epoch"] = epoch_;
  return position;
}

void Epochs::seek(const nlohmann::json& position) {
  const std::int64_t last = (epochs_ == 0 ? std::numeric_limits<std::int64_t>::max() : epochs_) - 1;
  const std::int64_t epoch =
      position.is_object() && !position.contains("epoch") ? 0 : count_at(position, "epoch", last);
  const nlohmann::json before = source_->position();
  try {
    source_->begin_pass(epoch);
    source_->seek(position);
  } catch (...) {
    source_->begin_pass(epoch_);
    source_->seek(before);
    throw;
  }
  epoch_ = epoch;
}

}  // namespace nsa::train
