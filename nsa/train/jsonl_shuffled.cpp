#include "nsa/train/jsonl_shuffled.hpp"

#include <algorithm>

#include "nsa/train/packing.hpp"
#include "nsa/train/permutation.hpp"
#include "nsa/train/position.hpp"

namespace nsa::train {

ShuffledJsonl::ShuffledJsonl(const StreamOptions& options, std::size_t places) : options_(options), rows_(options) {
  identity_ = {{"data", "jsonl"},
               {"file_bytes", rows_.file().bytes()},
               {"fingerprint", rows_.file().fingerprint()},
               {"split", options.split == Split::train ? "train" : "validation"},
               {"validation_share", options.validation_share},
               {"seq_len", options.seq_len},
               {"packed", options.packed},
               {"order", "shuffled"},
               {"seed", options.seed}};
  find_rows(places);
}

void ShuffledJsonl::find_rows(std::size_t places) {
  while (true) {
    const JsonlRows::Row row = rows_.take();
    const bool whole = static_cast<std::int64_t>(row.tokens.size()) == options_.seq_len + 1;
    has_rest_ = !whole && row.tokens.size() >= 2;
    if (!whole && !has_rest_) break;
    const std::int64_t index = whole_;
    if (index % stride_ == 0) places_.push_back(row.start);
    if (places_.size() > places) {  // every second one of them goes
      for (std::size_t i = 1; 2 * i < places_.size(); ++i) places_[i] = places_[2 * i];
      places_.resize((places_.size() + 1) / 2);
      stride_ *= 2;
    }
    if (!whole) break;
    ++whole_;
  }
  skipped_ = rows_.place().line.skipped;
}

JsonlRows::Row ShuffledJsonl::row(std::int64_t index) {
  rows_.go(places_[static_cast<std::size_t>(index / stride_)]);
  for (std::int64_t over = index % stride_; over > 0; --over) (void)rows_.take();
  return rows_.take();
}

Batch ShuffledJsonl::next() {
  const std::int64_t before = at_;
  try {
    while (at_ < whole_) {
      const Permutation order(static_cast<std::uint64_t>(whole_), key_of_pass(options_.seed, epoch_));
      std::vector<JsonlRows::Row> rows;
      while (at_ < whole_ && static_cast<std::int64_t>(rows.size()) < options_.batch_size)
        rows.push_back(row(static_cast<std::int64_t>(order(static_cast<std::uint64_t>(at_++)))));
      if (!options_.packed || predicts_something(rows.front().begins, options_.seq_len + 1))
        return rows_.batch_of(rows);
    }
    if (at_ > whole_ || !has_rest_) return {};
    ++at_;
    const JsonlRows::Row rest = row(whole_);
    if (options_.packed && !predicts_something(rest.begins, static_cast<std::int64_t>(rest.tokens.size()))) return {};
    return rows_.batch_of({rest});
  } catch (...) {  // the position is that of the batch which could not be read
    at_ = before;
    throw;
  }
}

void ShuffledJsonl::begin_pass(std::int64_t epoch) {
  epoch_ = epoch;
  at_ = 0;
}

nlohmann::json ShuffledJsonl::position() const {
  nlohmann::json position = identity_;
  position["row"] = at_;
  position["skipped_lines"] = skipped_;
  return position;
}

void ShuffledJsonl::seek(const nlohmann::json& position) {
  check_identity(identity_, position);
  at_ = count_at(position, "row", whole_ + (has_rest_ ? 1 : 0));
}

}  // namespace nsa::train
