// What the selected branch's merged backward pass (selected/sm90_backward/parts_backward.cuh) is cut into, and its
// workspace. A turn's sums live from its first chunk to its last.
//
// Note [Two lanes]
// parts_backward_kernel is bound by tensor cores and shared memory, finish_chunk_kernel by memory, and the one's last
// CTAs leave SMs idle. Turns have nothing in common. So they go on two streams, each with parts and sums of its own:
// while a turn's chunk is finished, another turn's is computed. For that turns are halved, or, where a turn is a pair
// already, the chunks of sequences short enough for it (Limits::lane_tokens).
#pragma once

#include "nsa/kernels/selected/plan.cuh"
#include "nsa/kernels/selected/sm90_backward/key_sums.cuh"

namespace nsa::kernels {

// Wider heads have no registers for it.
template <int Dk, int Dv>
inline constexpr bool kMerges = Dk % 64 == 0 && Dk <= 128 && Dv <= 128;

template <typename T, int Dk, int Dv>
struct PartsBackwardPlan {
  using Parts = PartsPlan<T, Dk>;
  // What a turn has for itself.
  struct Lane {
    void* parts = nullptr;
    hopper::KeySums sums;
  };
  struct Cut {
    int lanes;
    typename Parts::Sizes sizes;
  };
  Parts parts;
  std::int64_t tiles;  // of keys, of a pair
  std::int64_t wanted_ctas;
  int lanes;
  Lane lane[2];

  // Whether a single pair's sums are within Limits::sums_bytes.
  static bool fits(const AttentionForward& p, Variant variant, const Limits& limits) {
    const auto sizes = Parts::sizes(p, variant, limits);
    return turn(p, limits, sizes.chunk, sizes.turn, 1) > 0;
  }
  PartsBackwardPlan(const AttentionForward& p, Variant variant, const Limits& limits, Arena& arena)
      : PartsBackwardPlan(p, variant, limits, cut(p, variant, limits), arena) {}
  // Of a turn of a slice.
  [[nodiscard]] int turn_batches(const AttentionForward& p) const {
    return static_cast<int>(std::clamp<std::int64_t>(parts.turn / p.G, 1, p.B));
  }
  [[nodiscard]] int turn_groups(const AttentionForward& p) const {
    return static_cast<int>(std::min<std::int64_t>(parts.turn, p.G));
  }
  // Of kernels, at most. A turn's sums are stored in the end.
  [[nodiscard]] std::int64_t launches(const AttentionForward& p) const {
    const AttentionForward slice = shape_of_pairs(p, std::int64_t{parts.batches} * parts.groups);
    const std::int64_t turns = tiles_of(slice.B, turn_batches(slice)) * tiles_of(slice.G, turn_groups(slice));
    return parts.launches(p, turns, 1);
  }
  // Who adds the pieces of some pairs' chunk. Of a long sequence few lists have more than a piece, of a short one all.
  [[nodiscard]] hopper::Adders adders(std::int64_t pairs) const {
    constexpr int kShares = kPartial<Dk, Dv> / 4 / kSumThreads;
    const std::int64_t adding =
        std::clamp<std::int64_t>(wanted_ctas / (kShares * pairs), tiles_of(tiles, kSumThreads), tiles);
    return {kShares, static_cast<int>(adding), static_cast<int>(pairs)};
  }
  // Of some pairs.
  [[nodiscard]] std::size_t sums_bytes(std::int64_t pairs) const {
    return static_cast<std::size_t>(pairs * tiles * kPartial<Dk, Dv>) * sizeof(float);
  }

 private:
  PartsBackwardPlan(const AttentionForward& p, Variant variant, const Limits& limits, const Cut& cut, Arena& arena)
      : parts(p, variant, limits, cut.sizes, piece_tokens(p, limits), arena),
        tiles(tiles_of_pair(p)),
        wanted_ctas(limits.wanted_ctas),
        lanes(cut.lanes) {
    for (int i = 0; i < lanes; ++i) {
      lane[i].parts = i == 0 ? parts.parts.data : arena.take<T>(parts.part_rows(p) * Dk);
      lane[i].sums.slots = static_cast<int>(slots_of_pair(p, limits, parts.chunk));
      lane[i].sums.sums = arena.take<float>(parts.turn * tiles * kPartial<Dk, Dv>);
      lane[i].sums.partials = arena.take<float>(parts.turn * lane[i].sums.slots * kPartial<Dk, Dv>);
    }
  }
  // See Note [Two lanes].
  static Cut cut(const AttentionForward& p, Variant variant, const Limits& limits) {
    const auto whole = Parts::sizes(p, variant, limits);
    const int tokens = piece_tokens(p, limits);
    const bool halves = whole.turn > 1 || p.S <= limits.lane_tokens;
    const std::int64_t chunk = whole.turn > 1 ? whole.chunk : tiles_of(whole.chunk, 128) * 64;
    const std::int64_t half = turn(p, limits, chunk, std::max<std::int64_t>(whole.turn / 2, 1), 2);
    if (halves && half > 0) {
      const Cut two{2, Parts::sizes(p, variant, limits, chunk, half, tokens)};
      if (two.sizes.pairs > half) return two;  // a slice is several turns
    }
    const std::int64_t most = turn(p, limits, whole.chunk, whole.turn, 1);
    return {1, Parts::sizes(p, variant, limits, whole.chunk, most, tokens)};
  }
  static int piece_tokens(const AttentionForward& p, const Limits& limits) {
    return static_cast<int>(tiles_of(limits.piece_rows, p.Hq / p.G));
  }
  static std::int64_t tiles_of_pair(const AttentionForward& p) {
    return p.selection.J * tiles_of(p.geometry.l_sel, kKeyTile);
  }
  // All pieces but a list's first have one: see second_slot().
  static std::int64_t slots_of_pair(const AttentionForward& p, const Limits& limits, std::int64_t chunk) {
    return (chunk * p.geometry.n / piece_tokens(p, limits) + 1) * tiles_of(p.geometry.l_sel, kKeyTile);
  }
  // Pairs, `most` at most: some groups of an entry, or whole entries.
  static std::int64_t turn(const AttentionForward& p, const Limits& limits, std::int64_t chunk, std::int64_t most,
                           int lanes) {
    const std::int64_t a_pair = (tiles_of_pair(p) + slots_of_pair(p, limits, chunk)) * kPartial<Dk, Dv> *
                                static_cast<std::int64_t>(sizeof(float));
    const std::int64_t pairs = std::min(most, limits.sums_bytes / lanes / a_pair);
    return pairs < p.G ? pairs : pairs / p.G * p.G;
  }
};

}  // namespace nsa::kernels
