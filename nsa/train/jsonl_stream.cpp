#include "nsa/train/jsonl_stream.hpp"

#include <fmt/format.h>

#include <array>
#include <stdexcept>

#include "nsa/train/packing.hpp"
#include "nsa/train/position.hpp"

namespace nsa::train {

JsonlStream::JsonlStream(const StreamOptions& options) : options_(options), rows_(options) {
  identity_ = {{"data", "jsonl"},
               {"file_bytes", rows_.file().bytes()},
               {"fingerprint", rows_.file().fingerprint()},
               {"split", options.split == Split::train ? "train" : "validation"},
               {"validation_share", options.validation_share},
               {"seq_len", options.seq_len},
               {"packed", options.packed}};
}

Batch JsonlStream::next() {
  if (!there_) rows_.go(position_);
  there_ = false;  // until all of the batch is read
  Batch batch;
  for (auto rows = take_batch(); !rows.empty(); rows = take_batch()) {
    const auto length = static_cast<std::int64_t>(rows.front().tokens.size());
    if (options_.packed && !predicts_something(rows.front().begins, length)) continue;
    batch = rows_.batch_of(rows);
    break;
  }
  position_ = rows_.place();
  there_ = true;
  return batch;
}

std::vector<JsonlRows::Row> JsonlStream::take_batch() {
  std::vector<JsonlRows::Row> rows;
  while (static_cast<std::int64_t>(rows.size()) < options_.batch_size) {
    JsonlRows::Row row = rows_.take();
    const bool whole = static_cast<std::int64_t>(row.tokens.size()) == options_.seq_len + 1;
    if (whole) {
      rows.push_back(std::move(row));
    } else if (!rows.empty()) {
      rows_.go(row.start);  // a batch of its own, the next one
      break;
    } else {
      if (row.tokens.size() >= 2) rows.push_back(std::move(row));
      break;
    }
  }
  return rows;
}

void JsonlStream::begin_pass(std::int64_t /*epoch*/) {
  position_ = {};
  there_ = false;
}

nlohmann::json JsonlStream::position() const {
  nlohmann::json position = identity_;
  position["byte"] = position_.line.byte;
  position["line"] = position_.line.line;
  position["skipped_lines"] = position_.line.skipped;
  position["token"] = position_.token;
  return position;
}

void JsonlStream::seek(const nlohmann::json& position) {
  check_identity(identity_, position);
  const DataFile& file = rows_.file();
  JsonlRows::Place place;
  place.line.byte = count_at(position, "byte", file.bytes());
  place.line.line = count_at(position, "line", place.line.byte);
  place.line.skipped = count_at(position, "skipped_lines", place.line.line);
  place.token = count_at(position, "token", options_.max_line_bytes + 1);
  if (place.line.byte > 0 && place.line.byte < file.bytes()) {
    std::array<std::uint8_t, 1> before{};
    file.read(place.line.byte - 1, before);
    if (before[0] != '\n')
      throw std::invalid_argument(fmt::format("data position: byte is {}: no line begins there", place.line.byte));
  }
  there_ = false;  // if go() throws, next() goes back to position_
  rows_.go(place);
  position_ = place;
  there_ = true;
}

}  // namespace nsa::train
