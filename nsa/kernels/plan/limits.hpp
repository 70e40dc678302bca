// What bounds the workspaces of attention and decides between its ways and how they are cut; besides, whether the MLP's
// products are ours. A part of the device (device.hpp), for which they were fitted; tests lower them, to reach what
// else only long sequences do.
#pragma once

#include <cstdint>

namespace nsa::kernels {

struct Limits {
  // Up to so many tiles of keys, and to so many times the heads of a group, neighbouring queries are computed jointly
  // forward (selected/sm90_union/joint.cuh): 4224 tokens for 6 heads, 11,264 for 16. The fewer heads the more tokens a
  // tile of rows holds, and the larger the union of their blocks. In a longer sequence those are which see
  // `first_tiles` at most, and of the others the device decides.
  std::int64_t joint_tiles = 192, joint_tiles_a_head = 11, first_tiles = 64;
  // The merged backward pass (selected/sm90_backward/parts_backward.cuh) is faster earlier: beyond so many tiles of
  // keys the device decides for every chunk by its own queries.
  std::int64_t merged_tiles = 80;
  // By these costs (selected/ways.hpp; fitted in ../history.md), in tenths of the first: 64 rows with 64 keys jointly;
  // 64 rows jointly before their first keys; 64 rows with 64 keys as parts, lists and joining included; what dQ's part
  // adds to the merged backward pass, which computes dK and dV anyway.
  std::int64_t joint_tile_cost = 10, joint_start_cost = 20, part_cost = 24, merged_part_cost = 15;
  // Of dynamic shared memory. Where the blocks that joint_kernel's tiles walk through do not fit, all go by parts.
  std::int64_t joint_bytes = 226 << 10;
  // Of the parts that exist at once: a chunk of queries of some pairs (batch entry, group)
  // (selected/sm90_split/parts.cuh). Not fewer than `fewest_queries`. 4096 queries of 16 heads with width 128 at n
  // = 16.
  std::int64_t parts_bytes = std::int64_t{264} << 20, fewest_queries = 256;
  // Of what the merged backward pass (selected/sm90_backward/parts_backward.cuh) keeps besides: dK and dV in fp32 from
  // chunk to chunk, and what the pieces of a chunk's lists add to them. Where a single pair needs more (at n = 16 and
  // 16 heads beyond 163,000 tokens of widths 128), dQ and dK, dV are made one after the other.
  std::int64_t sums_bytes = std::int64_t{192} << 20;
  // Up to so many tokens chunks of queries are halved there, for two lanes (Note [Two lanes], merged_plan.cuh).
  std::int64_t lane_tokens = 16384;
  // There a piece of a list has so many rows (token, head): each but the first writes and reads its 64 keys' sums.
  int piece_rows = 2048;
  // Of forward's and dQ's parts so many, and 64 tokens at least: the first block's list has every query.
  int parts_piece_rows = 512;
  // Of the query lists that are made in one go, for parts or for dK and dV, and of the partial sums of dK and dV
  // that exist at once. For dK and dV a single group is not divided: its lists are as long as its rows of the
  // table of blocks.
  std::int64_t lists_bytes = std::int64_t{128} << 20, partials_bytes = std::int64_t{128} << 20;
  // The merged backward pass over intervals (interval/sm90_backward/backward.cuh): from so many steps on, tiles of 64
  // rows by 128 keys (fewer do not fill a GPU); the compressed branch in about so many items, of so many tiles of rows
  // at least and at most; bytes of the sums of dQ that exist at once, where no more are needed, of dK and dV where each
  // chunk leaves its own, and of the whole workspace.
  std::int64_t interval_steps = 16384, interval_items = 400, interval_tiles = 16, interval_most_tiles = 128;
  // Width 64 goes so where the compressed keys are one tile, from so many steps on (at S = 2048 a batch of 6 with 12
  // heads), in about as many items as a GPU has SMs.
  std::int64_t few_keys_steps = 2048;
  int few_keys_items = 132;
  std::int64_t interval_sums_bytes = std::int64_t{256} << 20, interval_key_bytes = std::int64_t{128} << 20;
  std::int64_t interval_bytes = std::int64_t{512} << 20;
  // A backward pass that may go as two, dQ and beside it dK and dV (attention_plan.hpp), does so up to so many rows
  // (token, head), which do not fill a GPU: two kernels at once are then faster than one of both. Beyond the second
  // number a launch is so long that its last CTAs do not matter.
  std::int64_t beside_rows = 65536, most_beside_rows = 524288;
  // Chunks of queries that go by parts have so many where the parts' bytes allow: a block of keys is then worth its
  // load.
  std::int64_t long_chunk = 4096;
  // Queries of a tile of keys, for dK and dV, go in pieces: of a list of so many tokens, over intervals of so many rows
  // at least.
  std::int64_t shortest_piece = 128, longest_piece = 4096, interval_piece_rows = 512;
  // CTAs that fill a GPU a few times over; that it holds at a time; that add pieces, which are small.
  std::int64_t wanted_ctas = 1024, resident_ctas = 264, adding_ctas = 4096;
  // The MLP's products with their SiLU (mlp.hpp) are ours where each has a tile for one SM in so many at least.
  int sms_a_silu_tile = 2;
};

}  // namespace nsa::kernels
