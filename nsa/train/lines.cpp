#include "nsa/train/lines.hpp"

#include <algorithm>

namespace nsa::train {

namespace {

constexpr std::int64_t kChunk = 256 << 10;  // bytes read at once

}  // namespace

LineReader::LineReader(const DataFile& file, std::int64_t longest) : file_(file), longest_(longest) {}

void LineReader::fill() {
  const bool held = at_ >= chunk_begin_ && at_ < chunk_begin_ + static_cast<std::int64_t>(chunk_.size());
  if (held) return;
  std::vector<std::uint8_t> chunk(static_cast<std::size_t>(std::min(kChunk, file_.bytes() - at_)));
  file_.read(at_, chunk);
  chunk_ = std::move(chunk);
  chunk_begin_ = at_;
}

std::optional<Line> LineReader::next() {
  if (at_ >= file_.bytes()) return {};
  const std::int64_t begin = at_;
  Line line{.text = {}, .begin = begin, .length = 0};
  try {
    for (bool ended = false; !ended && at_ < file_.bytes();) {
      fill();
      const auto from = chunk_.begin() + (at_ - chunk_begin_);
      const auto to = std::find(from, chunk_.end(), std::uint8_t{'\n'});
      ended = to != chunk_.end();
      line.length += to - from;
      if (line.length <= longest_) line.text.append(from, to);
      at_ += to - from + (ended ? 1 : 0);
    }
  } catch (...) {  // the line is still to come
    at_ = begin;
    throw;
  }
  return line;
}

}  // namespace nsa::train
