#include "nsa/train/text_stream.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "base/random.hpp"
#include "nsa/train/packing.hpp"
#include "nsa/train/permutation.hpp"
#include "nsa/train/position.hpp"

namespace nsa::train {

namespace {

bool is_white(std::uint8_t byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

}  // namespace

int trailing_newlines(std::span<const std::uint8_t> bytes) {
  int newlines = 0;
  for (std::size_t i = bytes.size(); i-- > 0 && is_white(bytes[i]);) newlines += bytes[i] == '\n' ? 1 : 0;
  return newlines;
}

std::vector<std::int32_t> paragraph_begins(std::span<const std::uint8_t> row, int newlines) {
  std::vector<std::int32_t> begins;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] == '\n') ++newlines;
    if (is_white(row[i])) continue;
    if (newlines >= 2 && i > 0) begins.push_back(static_cast<std::int32_t>(i));
    newlines = 0;
  }
  return begins;
}

TextStream::TextStream(const StreamOptions& options) : options_(options), file_(options.data), state_(options.seed) {
  const auto held_out = std::llround(static_cast<double>(file_.bytes()) * options.validation_share);
  const std::int64_t cut = file_.bytes() - held_out;
  begin_ = options.split == Split::train ? 0 : cut;
  end_ = options.split == Split::train ? cut : file_.bytes();
  const bool crops = options.order == Order::random_crops;
  const std::int64_t needed = crops ? options.seq_len + 1 : 2;
  if (end_ - begin_ < needed)
    throw file_.error(fmt::format("its {} split has {} of {} bytes; {} with seq_len {} needs {}",
                                  options.split == Split::train ? "training" : "validation", end_ - begin_,
                                  file_.bytes(), crops ? "a random crop" : "a row", options.seq_len, needed));
  identity_ = {{"data", "text"},
               {"file_bytes", file_.bytes()},
               {"fingerprint", file_.fingerprint()},
               {"begin", begin_},
               {"end", end_},
               {"seq_len", options.seq_len},
               {"packed", options.packed},
               {"order", crops                              ? "random_crops"
                         : options.order == Order::shuffled ? "shuffled"
                                                            : "sequential"}};
  if (options.order != Order::sequential) identity_["seed"] = options.seed;
}

Batch TextStream::next() {
  const auto resume_at = std::pair(row_, state_);
  try {
    while (true) {
      const Rows rows = options_.order == Order::random_crops ? take_crops() : take_rows();
      if (rows.starts.empty()) return {};
      Batch batch{.tokens = at::empty({static_cast<std::int64_t>(rows.starts.size()), rows.length}, at::kLong),
                  .cu_seqlens = {}};
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows.length));
      auto* token = batch.tokens.mutable_data_ptr<std::int64_t>();
      for (const std::int64_t start : rows.starts) {
        file_.read(start, bytes);
        token = std::copy(bytes.begin(), bytes.end(), token);
      }
      if (!options_.packed) return batch;
      const auto begins = paragraph_begins(bytes, newlines_before(rows.starts.front()));
      if (!predicts_something(begins, rows.length)) continue;
      batch.cu_seqlens = cu_seqlens_of(begins, rows.length);
      return batch;
    }
  } catch (...) {  // the position is that of the batch which could not be read
    std::tie(row_, state_) = resume_at;
    throw;
  }
}

std::int64_t TextStream::row_length(std::int64_t row) const {
  return std::min(options_.seq_len + 1, end_ - begin_ - row * options_.seq_len);
}

std::int64_t TextStream::last_row() const {
  return std::max<std::int64_t>(0, (end_ - begin_ - 1 + options_.seq_len - 1) / options_.seq_len);
}

std::int64_t TextStream::row_at(std::int64_t place) const {
  const std::int64_t whole = (end_ - begin_ - 1) / options_.seq_len;
  if (options_.order != Order::shuffled || place >= whole) return place;
  const Permutation order(static_cast<std::uint64_t>(whole), key_of_pass(options_.seed, epoch_));
  return static_cast<std::int64_t>(order(static_cast<std::uint64_t>(place)));
}

TextStream::Rows TextStream::take_rows() {
  Rows rows;
  rows.length = row_length(row_);
  if (rows.length < 2) return {};
  const bool whole = rows.length == options_.seq_len + 1;
  const std::int64_t most = whole ? options_.batch_size : 1;
  while (static_cast<std::int64_t>(rows.starts.size()) < most && row_length(row_) == rows.length)
    rows.starts.push_back(begin_ + options_.seq_len * row_at(row_++));
  return rows;
}

TextStream::Rows TextStream::take_crops() {
  Rows rows;
  rows.length = options_.seq_len + 1;
  const auto places = static_cast<std::uint64_t>(end_ - begin_ - rows.length + 1);
  for (std::int64_t i = 0; i < options_.batch_size; ++i)
    rows.starts.push_back(begin_ + static_cast<std::int64_t>(base::next_below(state_, places)));
  return rows;
}

int TextStream::newlines_before(std::int64_t byte) const {
  int newlines = 0;
  std::array<std::uint8_t, 64> chunk{};
  while (byte > begin_ && newlines < 2) {
    const auto size = std::min<std::int64_t>(byte - begin_, chunk.size());
    const std::span<std::uint8_t> bytes(chunk.data(), static_cast<std::size_t>(size));
    file_.read(byte - size, bytes);
    newlines += trailing_newlines(bytes);
    if (!std::all_of(bytes.begin(), bytes.end(), is_white)) break;
    byte -= size;
  }
  return newlines;
}

nlohmann::json TextStream::position() const {
  nlohmann::json position = identity_;
  if (options_.order == Order::random_crops) {
    position["generator"] = state_;
  } else {
    position["row"] = row_;
  }
  return position;
}

void TextStream::seek(const nlohmann::json& position) {
  check_identity(identity_, position);
  if (options_.order == Order::random_crops) {
    state_ = state_at(position, "generator");
  } else {
    row_ = count_at(position, "row", last_row());
  }
}

void TextStream::begin_pass(std::int64_t epoch) {
  epoch_ = epoch;
  row_ = 0;
}

}  // namespace nsa::train
