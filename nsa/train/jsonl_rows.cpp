#include "nsa/train/jsonl_rows.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "nsa/train/packing.hpp"

namespace nsa::train {

Batch JsonlRows::batch_of(const std::vector<Row>& rows) const {
  const auto length = static_cast<std::int64_t>(rows.front().tokens.size());
  Batch batch;
  batch.tokens = at::empty({static_cast<std::int64_t>(rows.size()), length}, at::kLong);
  auto* token = batch.tokens.mutable_data_ptr<std::int64_t>();
  for (const Row& row : rows) token = std::copy(row.tokens.begin(), row.tokens.end(), token);
  if (options_.packed) batch.cu_seqlens = cu_seqlens_of(rows.front().begins, length);
  return batch;
}

JsonlRows::Row JsonlRows::take() {
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

std::int64_t JsonlRows::document_size() const {
  if (!in_document_) return 0;
  return static_cast<std::int64_t>(reader_.text().size()) + (options_.packed ? 0 : 1);  // the newline that ends it
}

bool JsonlRows::next_document() {
  in_document_ = reader_.next();
  token_ = 0;
  return in_document_;
}

JsonlRows::Place JsonlRows::place() const { return {.line = reader_.place(), .token = token_}; }

void JsonlRows::go(const Place& place) {
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

}  // namespace nsa::train
