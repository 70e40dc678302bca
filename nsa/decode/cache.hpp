// What decoding keeps of the tokens that it has seen, a layer at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "nsa/config.hpp"
#include "nsa/model/attention.hpp"

namespace nsa::decode {

// The rows of a stream: all of them, or the last `limit` in a ring. They come as [B,T,G,D] and are kept as
// [B,G,rows,D], a group's rows side by side, as attention reads them. Room doubles when it runs out, so that a row is
// written once and moved less than once on the average; no token causes a copy of the others.
class Stream {
 public:
  static constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
  explicit Stream(std::int64_t limit = kUnlimited, std::int64_t room = 0) : limit_(limit), room_(room) {}

  // Throws ContractError when B, G, D, dtype or device are not those of the rows before.
  void append(const at::Tensor& rows);
  // The rows that are kept, a view [B,G,kept,D]; a ring that has wrapped gives them in another order than they came.
  // Undefined before the first append.
  [[nodiscard]] at::Tensor rows() const;
  // The last `count` rows in the order in which they came [B,G,count,D]. Throws std::logic_error
  // for more than are kept.
  [[nodiscard]] at::Tensor last(std::int64_t count) const;

  [[nodiscard]] std::int64_t seen() const { return seen_; }
  [[nodiscard]] std::int64_t kept() const { return seen_ < limit_ ? seen_ : limit_; }
  [[nodiscard]] std::int64_t bytes() const;  // of the room, used or not

 private:
  void check_fits(const at::Tensor& rows) const;
  void make_room(std::int64_t rows, const at::Tensor& like);
  at::Tensor buffer_;  // [B,G,room,D]; row number r of the stream stands at place r % limit
  std::int64_t limit_, room_, seen_ = 0;
};

struct LayerCache {
  // `room`: tokens to make room for at once.
  LayerCache(const Geometry& g, std::int64_t room);

  Stream k_cmp, v_cmp;  // all complete blocks
  Stream k_raw, v_raw;  // the compressed branch's last l tokens before compression: the next block is made of them
  Stream k_sel, v_sel;  // all tokens
  Stream k_win, v_win;  // the last w tokens

  // What is undefined (another branch is forced) is not kept.
  void append(const Projected& tokens);
  void append(const Compressed& blocks);
  [[nodiscard]] std::int64_t bytes() const;
};

}  // namespace nsa::decode
