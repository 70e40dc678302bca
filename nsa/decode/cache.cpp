#include "nsa/decode/cache.hpp"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace nsa::decode {

namespace {

constexpr std::int64_t kSmallestRoom = 64;  // rows

std::string describe(const at::Tensor& t) {
  std::ostringstream device;
  device << t.device();
  return fmt::format("{} on {}", c10::toString(t.scalar_type()), device.str());
}

}  // namespace

void Stream::check_fits(const at::Tensor& rows) const {
  if (rows.dim() != 4)
    throw ContractError(fmt::format("cache: rows [{}]; allowed: [B,T,G,D]", fmt::join(rows.sizes(), ", ")));
  if (!buffer_.defined()) return;
  const bool fits = rows.size(0) == buffer_.size(0) && rows.size(2) == buffer_.size(1) &&
                    rows.size(3) == buffer_.size(3) && rows.scalar_type() == buffer_.scalar_type() &&
                    rows.device() == buffer_.device();
  if (!fits)
    throw ContractError(fmt::format("cache: rows [{}], {}; allowed: B {}, G {}, D {}, {}, as the rows before",
                                    fmt::join(rows.sizes(), ", "), describe(rows), buffer_.size(0), buffer_.size(1),
                                    buffer_.size(3), describe(buffer_)));
}

// A ring grows until it has its limit and wraps only then: growing never meets a wrapped ring.
void Stream::make_room(std::int64_t rows, const at::Tensor& like) {
  const std::int64_t held = buffer_.defined() ? buffer_.size(2) : 0;
  if (rows <= held) return;
  const std::int64_t room = std::min(limit_, std::max({rows, 2 * held, room_, kSmallestRoom}));
  const c10::InferenceMode normal(false);  // a buffer that any later call may write
  const auto wider = at::empty({like.size(0), like.size(2), room, like.size(3)}, like.options().requires_grad(false));
  if (held > 0) wider.narrow(2, 0, seen_).copy_(buffer_.narrow(2, 0, seen_));
  buffer_ = wider;
}

void Stream::append(const at::Tensor& rows) {
  check_fits(rows);
  const std::int64_t coming = rows.size(1),
                     skipped = std::max<std::int64_t>(0, coming - limit_);  // would be overwritten
  make_room(std::min(limit_, seen_ + coming), rows);
  const auto source = rows.transpose(1, 2);
  for (std::int64_t from = skipped; from < coming;) {
    const std::int64_t place = (seen_ + from) % limit_, count = std::min(coming - from, limit_ - place);
    buffer_.narrow(2, place, count).copy_(source.narrow(2, from, count));
    from += count;
  }
  seen_ += coming;
}

at::Tensor Stream::rows() const { return buffer_.defined() ? buffer_.narrow(2, 0, kept()) : at::Tensor(); }

at::Tensor Stream::last(std::int64_t count) const {
  if (count > kept() || count < 1)
    throw std::logic_error(fmt::format("cache: the last {} rows of a stream that keeps {}", count, kept()));
  const std::int64_t begin = (seen_ - count) % limit_, straight = std::min(count, limit_ - begin);
  const auto head = buffer_.narrow(2, begin, straight);
  return straight == count ? head : at::cat({head, buffer_.narrow(2, 0, count - straight)}, 2);
}

std::int64_t Stream::bytes() const { return buffer_.defined() ? static_cast<std::int64_t>(buffer_.nbytes()) : 0; }

LayerCache::LayerCache(const Geometry& g, std::int64_t room)
    : k_cmp(Stream::kUnlimited, compressed_blocks(g, room)),
      v_cmp(Stream::kUnlimited, compressed_blocks(g, room)),
      k_raw(g.l),
      v_raw(g.l),
      k_sel(Stream::kUnlimited, room),
      v_sel(Stream::kUnlimited, room),
      k_win(g.w, room),
      v_win(g.w, room) {}

void LayerCache::append(const Projected& tokens) {
  const auto keep = [](Stream& stream, const at::Tensor& rows) {
    if (rows.defined()) stream.append(rows);
  };
  keep(k_raw, tokens.k_cmp);
  keep(v_raw, tokens.v_cmp);
  keep(k_sel, tokens.k_sel);
  keep(v_sel, tokens.v_sel);
  keep(k_win, tokens.k_win);
  keep(v_win, tokens.v_win);
}

void LayerCache::append(const Compressed& blocks) {
  if (!blocks.k.defined()) return;
  k_cmp.append(blocks.k);
  v_cmp.append(blocks.v);
}

std::int64_t LayerCache::bytes() const {
  std::int64_t sum = 0;
  for (const Stream* stream : {&k_cmp, &v_cmp, &k_raw, &v_raw, &k_sel, &v_sel, &k_win, &v_win}) sum += stream->bytes();
  return sum;
}

}  // namespace nsa::decode
