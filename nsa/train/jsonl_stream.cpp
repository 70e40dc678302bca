#include "nsa/train/jsonl_stream.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "nsa/train/packing.hpp"
#include "nsa/train/position.hpp"

namespace nsa::train {

JsonlStream::JsonlStream(const StreamOptions& options) : options_(options), reader_(options) {
  identity_ = {{"data", "jsonl"},
               {"file_bytes", reader_.file().bytes()},
               {"fingerprint", reader_.file().fingerprint()},
               {"split", options.split == Split::train ? "train" : "validation"},
               {"validation_share", options.validation_share},
               {"seq_len", options.seq_len},
               {"packed", options.packed}};
}

Batch JsonlStream::next() {
  if (!there_) go(position_);
  there_ = false;  // until all of the batch is read
  Batch batch;
  for (auto rows = take_batch(); !rows.empty(); rows = take_batch()) {
    const auto length = static_cast<std::int64_t>(rows.front().tokens.size());
    if (options_.packed && !predicts_something(rows.front().begins, length)) continue;
    batch.tokens = at::empty({static_cast<std::int64_t>(rows.size()), length}, at::kLong);
    auto* token = batch.tokens.mutable_data_ptr<std::int64_t>();
    for (const Row& row : rows) token = std::copy(row.tokens.begin(), row.tokens.end(), token);
    if (options_.packed) batch.cu_seqlens = cu_seqlens_of(rows.front().begins, length);
    break;
  }
  position_ = place();
  there_ = true;
  return batch;
}

std::vector<JsonlStream::Row> JsonlStream::take_batch() {
  std::vector<Row> rows;
  while (static_cast<std::int64_t>(rows.size()) < options_.batch_size) {
    Row row = take();
    const bool whole = static_cast<std::int64_t>(row.tokens.size()) == options_.seq_len + 1;
    if (whole) {
      rows.push_back(std::move(row));
    } else if (!rows.empty()) {
      go(row.start);  // a batch of its own, the next one
      break;
    } else {
      if (row.tokens.size() >= 2) rows.push_back(std::move(row));
      break;
    }
  }
  return rows;
}

JsonlStream::Row JsonlStream::take() {
  Row row{.start = place(), .tokens = {}, .begins = {}};
  const auto wanted = static_cast<std::size_t>(options_.seq_len + 1);
  while (row.tokens.size() < wanted) {
    if (token_ == document_size()) {
      if (!next_document()) return row;
      if (document_size() > 0 && !row.tokens.empty())
        row.begins.push_back(static_cast<std::int32_t>(row.tokens.size()));
      continue;
    }
    const std::string& text = reader_.text();
    const auto count = std::min(document_size() - token_, static_cast<std::int64_t>(wanted - row.tokens.size()));
    for (const std::int64_t end = token_ + count; token_ < end; ++token_) {
      const auto i = static_cast<std::size_t>(token_);
      row.tokens.push_back(i < text.size() ? static_cast<std::uint8_t>(text[i]) : '\n');
    }
  }
  --token_;
  return row;
}

std::int64_t JsonlStream::document_size() const {
  if (!in_document_) return 0;
  return static_cast<std::int64_t>(reader_.text().size()) + (options_.packed ? 0 : 1);  // the newline that ends it
}

bool JsonlStream::next_document() {
  in_document_ = reader_.next();
  token_ = 0;
  return in_document_;
}

JsonlStream::Place JsonlStream::place() const { return {.line = reader_.place(), .token = token_}; }

void JsonlStream::go(const Place& place) {
  reader_.seek(place.line);
  in_document_ = false;
  token_ = 0;
  if (place.token == 0) return;
  const bool found = next_document() && reader_.place().byte == place.line.byte && place.token <= document_size();
  if (!found)
    throw std::invalid_argument(
        fmt::format("data position: token {} of the document at byte {}: there is none", place.token, place.line.byte));
  token_ = place.token;
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
  const DataFile& file = reader_.file();
  Place place;
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
  go(place);
  position_ = place;
  there_ = true;
}

}  // namespace nsa::train
