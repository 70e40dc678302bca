// What a call of attention is cut into, whichever its branch: slices of batch entries and groups, and the queries of a
// tile of keys in pieces.
#pragma once

#include <algorithm>

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/device/pieces.cuh"
#include "nsa/kernels/plan/arena.hpp"
#include "nsa/kernels/plan/limits.hpp"

namespace nsa::kernels {

inline unsigned grid(std::int64_t count) { return static_cast<unsigned>(count); }
inline std::int64_t tiles_of(std::int64_t count, std::int64_t tile) { return (count + tile - 1) / tile; }

// Batch entries, and of a single one also groups, as a problem of their own.
struct Slice {
  int batch, batches, group, groups;
};
// `blocks` begins at the slice's first group and keeps its rows of p.G groups.
template <typename T>
AttentionForward slice(const AttentionForward& p, const Slice& x) {
  const auto rows_of = [&](const Rows& rows, int head) {
    Rows own = rows;
    if (rows.data) own.data = static_cast<T*>(rows.data) + x.batch * rows.batch + head * rows.head;
    return own;
  };
  const int h = p.Hq / p.G, head = x.group * h;
  AttentionForward own = p;
  own.q = rows_of(p.q, head), own.o = rows_of(p.o, head);
  own.k = rows_of(p.k, x.group), own.v = rows_of(p.v, x.group);
  own.stats = p.stats + (static_cast<std::int64_t>(x.batch) * p.Hq + head) * p.S * 2;
  own.blocks = p.blocks + (static_cast<std::int64_t>(x.batch) * p.S * p.G + x.group) * p.geometry.n;
  own.B = x.batches, own.G = x.groups, own.Hq = x.groups * h;
  return own;
}
// The first so many pairs (batch entry, group): some groups of an entry, or whole entries.
inline AttentionForward shape_of_pairs(const AttentionForward& p, std::int64_t pairs) {
  AttentionForward own = p;
  own.G = static_cast<int>(std::min<std::int64_t>(pairs, p.G));
  own.B = static_cast<int>(std::clamp<std::int64_t>(pairs / p.G, 1, p.B));
  own.Hq = own.G * (p.Hq / p.G);
  return own;
}
template <typename T>
AttentionBackward slice(const AttentionBackward& p, const Slice& x) {
  const AttentionForward& f = p.forward;
  // What belongs to the gradients lies as what belongs to the inputs.
  AttentionForward gradients = f;
  gradients.q = p.dq, gradients.o = p.dout, gradients.k = p.dk, gradients.v = p.dv;
  gradients = slice<T>(gradients, x);
  AttentionBackward own = p;
  own.forward = slice<T>(f, x);
  own.dq = gradients.q, own.dout = gradients.o, own.dk = gradients.k, own.dv = gradients.v;
  own.delta = p.delta + (static_cast<std::int64_t>(x.batch) * f.Hq + x.group * (f.Hq / f.G)) * f.S;
  return own;
}

// Into how many pieces, `most` at most, each of `tiles` tiles of keys is cut when all are seen by so many rows. Their
// CTAs go in waves of as many as the GPU holds at a time, so a cut may cost more than it brings. Costs are counted in
// tiles of 64 rows: a CTA's beginning and end are three; what adds the pieces is a launch, four, and reads what was
// written, one for 128 pieces.
inline std::int64_t pieces_of_equal_tiles(std::int64_t tiles, std::int64_t rows, std::int64_t most,
                                          std::int64_t resident_ctas) {
  const auto cost = [&](std::int64_t pieces) {
    const std::int64_t ctas = tiles * pieces;
    return tiles_of(ctas, resident_ctas) * (tiles_of(rows, 64 * pieces) + 3) + (pieces > 1 ? 4 + ctas / 128 : 0);
  };
  std::int64_t best = 1;
  for (std::int64_t pieces = 2; pieces <= most; ++pieces)
    if (cost(pieces) < cost(best)) best = pieces;
  return best;
}

// How the queries of every tile of keys are cut, and the sums of the pieces.
template <int Dk, int Dv>
struct DkvPlan {
  Pieces pieces;
  std::int64_t tiles;  // of keys
  float* partials = nullptr;

  DkvPlan(const AttentionForward& f, const Limits& limits, Arena& arena) : adding_ctas_(limits.adding_ctas) {
    const std::int64_t pairs = static_cast<std::int64_t>(f.B) * f.G;
    const int h = f.Hq / f.G;
    std::int64_t slots;
    if (f.mask == Mask::selected) {
      const std::int64_t entries = pairs * f.S * f.geometry.n;
      pieces.tiles_a_block = static_cast<int>(tiles_of(f.geometry.l_sel, kKeyTile));
      const std::int64_t a_slot = kPartial<Dk, Dv> * static_cast<std::int64_t>(sizeof(float));
      const std::int64_t fewest = tiles_of(2 * entries * pieces.tiles_a_block * a_slot, limits.partials_bytes);
      const std::int64_t wanted = tiles_of(entries / limits.wanted_ctas, 64) * 64;
      pieces.tokens = static_cast<int>(
          std::max(std::clamp(wanted, limits.shortest_piece, limits.longest_piece), tiles_of(fewest, 64) * 64));
      pieces.count = static_cast<int>(tiles_of(f.S, pieces.tokens));
      tiles = static_cast<std::int64_t>(f.selection.J) * pieces.tiles_a_block;
      slots = (2 * entries / pieces.tokens + 2) * pieces.tiles_a_block;
    } else {
      tiles = tiles_of(f.N, kKeyTile);
      const std::int64_t rows = static_cast<std::int64_t>(f.S) * h, all = std::max<std::int64_t>(tiles * pairs, 1);
      const bool window = f.mask == Mask::window;
      const std::int64_t longest = window ? std::min<std::int64_t>(rows, (f.geometry.w + kKeyTile) * h) : rows;
      const std::int64_t most = std::clamp<std::int64_t>(
          limits.wanted_ctas / all, 1, std::max<std::int64_t>(1, longest / limits.interval_piece_rows));
      pieces.count = static_cast<int>(window ? pieces_of_equal_tiles(all, longest, most, limits.resident_ctas) : most);
      slots = tiles * pairs * pieces.count;
    }
    if (pieces.count > 1) partials = arena.take<float>(slots * kKeyTile * (Dk + Dv));
  }
  // Of kernels: dK and dV, and the sum of pieces.
  [[nodiscard]] std::int64_t launches() const { return tiles == 0 ? 0 : pieces.count > 1 ? 2 : 1; }
  // CTAs that add the pieces of a tile of keys, of so many pairs: at most one for every kSumThreads quads of the tile.
  // At least four: of many lists only some are cut, and one that is may be as long as all queries.
  [[nodiscard]] std::int64_t adding_ctas(std::int64_t pairs) const {
    return std::clamp<std::int64_t>(adding_ctas_ / (tiles * pairs), 4, kPartial<Dk, Dv> / 4 / kSumThreads);
  }

 private:
  std::int64_t adding_ctas_;
};

}  // namespace nsa::kernels
