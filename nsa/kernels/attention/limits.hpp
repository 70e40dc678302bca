// What bounds the workspaces of attention and decides between its ways.
#pragma once

#include <cstdint>

namespace nsa::kernels {

struct Limits {
  // Up to so many tiles of keys neighbouring queries are computed together (hopper/joint.cuh), beyond them by parts.
  // Not measured yet: 16384 tokens in blocks of 64.
  std::int64_t joint_tiles = 256;
  // Of the parts that exist at once: a chunk of queries of some pairs (batch entry, group) (hopper/parts.cuh).
  std::int64_t parts_bytes = std::int64_t{256} << 20;
  // Pairs whose query lists are made in one go for them, as far as whole batch entries go.
  int most_pairs = 64;
  // Of the query lists that dK and dV are made from, and of their partial sums that exist at once. A single group is
  // not divided: its lists are as long as its rows of the table of blocks.
  std::int64_t lists_bytes = std::int64_t{128} << 20, partials_bytes = std::int64_t{128} << 20;
};
inline constexpr Limits kLimits;

}  // namespace nsa::kernels
