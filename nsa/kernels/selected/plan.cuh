// What the selected branch is cut into on Hopper, and its workspace: query lists, and parts in chunks and turns.
#pragma once

#include <algorithm>

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/plan/arena.hpp"
#include "nsa/kernels/plan/attention_plan.hpp"
#include "nsa/kernels/plan/plan.cuh"
#include "nsa/kernels/selected/lists_plan.hpp"
#include "nsa/kernels/selected/sm90_split/parts.cuh"
#include "nsa/kernels/selected/ways.hpp"

namespace nsa::kernels {

// The query lists of so many tokens and what makes them. `row_groups`: groups in a row of the table. `stretch`: tokens
// that have lists of their own; 0: all together.
struct ListPlan {
  Inverse inverse;
  QueryLists lists;
  int launches;  // of kernels, at most, whenever they are made

  ListPlan(const AttentionForward& p, int row_groups, int tokens, int stretch, bool places, Arena& arena) {
    const std::int64_t stretches = stretch > 0 ? tiles_of(tokens, stretch) : 1;
    const std::int64_t sets = static_cast<std::int64_t>(p.B) * p.G * stretches;
    const std::int64_t entries = sets * (stretch > 0 ? stretch : tokens) * p.geometry.n;
    inverse.document_blocks = p.selection.document_blocks;
    inverse.packed = p.packed;
    inverse.geometry = p.geometry;
    inverse.B = p.B;
    inverse.S = p.S;
    inverse.G = p.G;
    inverse.J = p.selection.J;
    inverse.row_groups = row_groups;
    inverse.end = tokens;
    inverse.stretch = stretch;
    inverse.offsets = arena.take<int>(sets * (p.selection.J + 1));
    inverse.tokens = arena.take<int>(entries);
    if (places) inverse.places = arena.take<int>(entries);
    const InversePlan own(inverse);
    launches = own.launches;
    inverse.workspace = reinterpret_cast<int*>(arena.take<char>(own.workspace));
    lists = {inverse.offsets, inverse.tokens, inverse.places};
  }
  // Of p, which has no more pairs than the plan's.
  void make(const AttentionForward& p, int begin, int end, cudaStream_t stream) {
    inverse.blocks = p.blocks;
    inverse.B = p.B;
    inverse.G = p.G;
    inverse.begin = begin;
    inverse.end = end;
    invert_choice(inverse, stream);
  }
};

// dK and dV by the queries of every block: as many groups at a time as have lists within Limits::lists_bytes.
template <int Dk, int Dv>
struct DkvOfListsPlan {
  int batches, groups;  // of a slice
  ListPlan lists;
  DkvPlan<Dk, Dv> dkv;

  DkvOfListsPlan(const AttentionForward& p, const Limits& limits, Arena& arena)
      : DkvOfListsPlan(shape_of_pairs(p, std::max<std::int64_t>(1, limits.lists_bytes / list_bytes(p))), p.G, limits,
                       arena) {}
  // Of kernels, at most.
  [[nodiscard]] std::int64_t launches(const AttentionForward& p) const {
    return tiles_of(p.B, batches) * tiles_of(p.G, groups) * (lists.launches + dkv.launches());
  }

 private:
  DkvOfListsPlan(const AttentionForward& slice, int row_groups, const Limits& limits, Arena& arena)
      : batches(slice.B),
        groups(slice.G),
        lists(slice, row_groups, slice.S, 0, false, arena),
        dkv(slice, limits, arena) {}
  static std::int64_t list_bytes(const AttentionForward& p) {
    return static_cast<std::int64_t>(p.S) * p.geometry.n * static_cast<std::int64_t>(sizeof(int));
  }
};

// Queries in chunks, and the pairs (batch entry, group) in turns, so that the parts of a chunk and turn fit
// Limits::parts_bytes. Chunks are long and turns short, because every block of keys is loaded once a chunk. Lists and
// items are made for a slice of pairs, and for all chunks in one go as far as Limits::lists_bytes allows; where not all
// chunks fit, the slice is a turn, so that a pair's chunks always follow each other.
template <typename T, int D>
class PartsPlan {
 public:
  std::int64_t chunk, turn;  // tokens, pairs
  std::int64_t chunks;       // whose lists are made in one go
  int batches, groups;       // of a slice
  hopper::Ways ways;         // those before ways.first have no parts
  Pieces pieces;
  hopper::Parts parts;
  hopper::Items items;
  ListPlan lists;

  struct Sizes {
    std::int64_t chunk, turn, chunks, pairs;  // pairs of a slice
  };
  PartsPlan(const AttentionForward& p, Variant variant, const Limits& limits, Arena& arena)
      : PartsPlan(p, variant, limits, sizes(p, variant, limits), piece_tokens(p, limits), arena) {}
  PartsPlan(const AttentionForward& p, Variant variant, const Limits& limits, Sizes sizes, int piece_tokens,
            Arena& arena)
      : chunk(sizes.chunk),
        turn(sizes.turn),
        chunks(sizes.chunks),
        batches(shape_of_pairs(p, sizes.pairs).B),
        groups(shape_of_pairs(p, sizes.pairs).G),
        ways(is_by_chunk(variant) ? ways_of(p, variant, limits, sizes, arena) : hopper::Ways()),
        lists(shape_of_pairs(p, sizes.pairs), p.G, static_cast<int>(sizes.chunks * sizes.chunk),
              static_cast<int>(sizes.chunk), true, arena) {
    pieces.tiles_a_block = static_cast<int>(tiles_of(p.geometry.l_sel, kKeyTile));
    pieces.tokens = piece_tokens;
    items.capacity = static_cast<int>(item_capacity(p, chunk, piece_tokens));
    items.data = arena.take<hopper::Item>(chunks * batches * groups * items.capacity);
    parts.row_groups = p.G;
    parts.per_token = static_cast<int>(parts_a_token(p));
    parts.stats = arena.take<float2>(part_rows(p));
    parts.data = arena.take<T>(part_rows(p) * D);
  }
  // Of kernels, at most: with so many turns in a slice and kernels after the last chunk of each.
  [[nodiscard]] std::int64_t launches(const AttentionForward& p, std::int64_t turns, int after) const {
    const std::int64_t tokens = p.S - ways.first, ranges = tiles_of(tokens, chunk * chunks);
    const std::int64_t a_slice = ranges * (lists.launches + 1) + turns * (tiles_of(tokens, chunk) * 2 + after);
    return (ways.chunk > 0 ? 2 : 0) + tiles_of(p.B, batches) * tiles_of(p.G, groups) * a_slice;
  }
  [[nodiscard]] std::int64_t launches(const AttentionForward& p) const {
    return launches(p, tiles_of(std::int64_t{batches} * groups, turn), 0);
  }
  // Of a turn's chunk.
  [[nodiscard]] std::int64_t part_rows(const AttentionForward& p) const {
    return turn * chunk * (p.Hq / p.G) * parts.per_token;
  }
  // Tokens that always go jointly where the device decides, in whole tiles of rows.
  static std::int64_t joint_tokens(const AttentionForward& p, const Limits& limits) {
    const std::int64_t blocks = limits.first_tiles / tiles_of(p.geometry.l_sel, kKeyTile);
    return tiles_of(std::max<std::int64_t>(blocks, 1) * p.geometry.l_sel, 64) * 64;
  }
  // Lists and items of the tokens [begin, end), whole chunks, for a slice p; of chunks that go jointly only on demand.
  void make_lists(const AttentionForward& p, std::int64_t begin, std::int64_t end, bool joint_ones,
                  cudaStream_t stream) {
    lists.inverse.unless = joint_ones ? nullptr : ways.unless_jointly(begin);
    lists.make(p, static_cast<int>(begin), static_cast<int>(end), stream);
    const std::int64_t sets = tiles_of(end - begin, chunk) * p.B * p.G;
    launch(false, hopper::items_kernel, grid(sets), 1024, 0, stream, lists.lists, p.selection, p.S, p.geometry.l_sel,
           pieces.tokens, items);
    check_launch("items");
  }
  // The sets of the pairs from `pair` on, of the chunk-th chunk that make_lists was called for.
  [[nodiscard]] hopper::Items items_of(const AttentionForward& p, std::int64_t chunk_number, std::int64_t pair) const {
    return {items.data + (chunk_number * p.B * p.G + pair) * items.capacity, items.capacity};
  }
  [[nodiscard]] QueryLists lists_of(const AttentionForward& p, std::int64_t chunk_number, std::int64_t pair) const {
    QueryLists own = lists.lists;
    own.offsets += (chunk_number * p.B * p.G + pair) * (p.selection.J + 1);
    return own;
  }
  // At most, of a pair's lists of the tokens [begin, end): no list of a later block has an entry.
  [[nodiscard]] std::int64_t item_count(const AttentionForward& p, std::int64_t begin, std::int64_t end) const {
    const std::int64_t lists = p.selection.starts ? p.selection.J : tiles_of(end, p.geometry.l_sel);
    return (end - begin) * p.geometry.n / pieces.tokens + lists;
  }

  static Sizes sizes(const AttentionForward& p, Variant variant, const Limits& limits) {
    const std::int64_t pairs = static_cast<std::int64_t>(p.B) * p.G;
    const std::int64_t a_part = D * static_cast<std::int64_t>(sizeof(T)) + static_cast<std::int64_t>(sizeof(float2));
    const std::int64_t queries = std::clamp<std::int64_t>(limits.parts_bytes / (p.Hq / p.G * parts_a_token(p) * a_part),
                                                          limits.fewest_queries, kMostQueries);
    // Whole tiles of rows, which chunks may not share when they go different ways.
    const std::int64_t chunk = std::min<std::int64_t>(
        p.S, std::min(queries, std::clamp(queries / pairs, limits.long_chunk, kLongestChunk)) / 64 * 64);
    return sizes(p, variant, limits, chunk, std::clamp<std::int64_t>(queries / chunk, 1, pairs),
                 piece_tokens(p, limits), limits.lists_bytes);
  }
  // With such chunks and turns.
  static Sizes sizes(const AttentionForward& p, Variant variant, const Limits& limits, std::int64_t chunk,
                     std::int64_t turn, int piece_tokens) {
    // Sums take their room: several turns' lists in one go are for short sequences.
    return sizes(p, variant, limits, chunk, turn, piece_tokens, limits.lists_bytes / 4);
  }

 private:
  // Short enough for Divisor's 32 bits: queries * chunk < 2^32.
  static constexpr std::int64_t kLongestChunk = 16384, kMostQueries = 131072;
  // As many turns in a slice as have their lists within `slice_bytes`.
  static Sizes sizes(const AttentionForward& p, Variant variant, const Limits& limits, std::int64_t chunk,
                     std::int64_t turn, int piece_tokens, std::int64_t slice_bytes) {
    const std::int64_t all = all_chunks(p, variant, limits, chunk), a_set = set_bytes(p, chunk, piece_tokens);
    const std::int64_t turns = slice_bytes / (a_set * std::max<std::int64_t>(all * turn, 1));
    if (turns > 0) return {chunk, turn, all, std::min(turns * turn, static_cast<std::int64_t>(p.B) * p.G)};
    return {chunk, turn, std::clamp<std::int64_t>(limits.lists_bytes / a_set / turn, 1, all), turn};
  }
  static int piece_tokens(const AttentionForward& p, const Limits& limits) {
    return std::max(64, static_cast<int>(tiles_of(limits.parts_piece_rows, p.Hq / p.G)));
  }
  static std::int64_t item_capacity(const AttentionForward& p, std::int64_t chunk, int piece_tokens) {
    return chunk * p.geometry.n / piece_tokens + p.selection.J;
  }
  // Bytes of the lists and items of a pair's chunk.
  static std::int64_t set_bytes(const AttentionForward& p, std::int64_t chunk, int piece_tokens) {
    return static_cast<std::int64_t>(sizeof(int)) * (2 * chunk * p.geometry.n + p.selection.J + 1) +
           item_capacity(p, chunk, piece_tokens) * static_cast<std::int64_t>(sizeof(hopper::Item));
  }
  static std::int64_t all_chunks(const AttentionForward& p, Variant variant, const Limits& limits, std::int64_t chunk) {
    return tiles_of(p.S - (variant == Variant::joint_or_parts ? joint_tokens(p, limits) : 0), chunk);
  }
  static std::int64_t parts_a_token(const AttentionForward& p) {
    return p.geometry.n * tiles_of(p.geometry.l_sel, kKeyTile);
  }
  static hopper::Ways ways_of(const AttentionForward& p, Variant variant, const Limits& limits, Sizes sizes,
                              Arena& arena) {
    hopper::Ways own{variant == Variant::joint_or_parts ? static_cast<int>(joint_tokens(p, limits)) : 0,
                     static_cast<int>(sizes.chunk)};
    own.by_own = variant == Variant::joint_or_merged_parts;
    own.jointly = arena.take<int>(own.chunks(p.S));
    return own;
  }
};

}  // namespace nsa::kernels
