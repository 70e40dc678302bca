// Where things lie: a CTA's shared memory, and the workspace. The plan counts with it what the kernels are given.
#pragma once

#include <algorithm>

#include "nsa/kernels/plan/arena.hpp"
#include "nsa/kernels/plan/decode_plan.hpp"

namespace nsa::kernels {

inline constexpr int kDecodeThreads = 256, kDecodeWarps = kDecodeThreads / 32;

// Bytes from the beginning of dynamic shared memory: queries, weights in the storage type and in fp32, keys and values
// of a tile of `rows`. The second launch has a table of the parts' weights before its tile, and in the place of the
// tile the scores of all blocks, until they are chosen.
struct DecodeShared {
  static constexpr int kWeightRow = kDecodeKeys + 4;  // floats
  static constexpr int kSums = 0;                     // [2][16][16] floats
  static constexpr int kSumFloats = 2 * kDecodeHeads * kDecodeHeads;
  static constexpr int kWeights = kSums + kSumFloats * 4;                         // [16][128] of 16 bits
  static constexpr int kWideWeights = kWeights + kDecodeHeads * kDecodeKeys * 2;  // [16][kWeightRow] floats
  static constexpr int kQueries = kWideWeights + kDecodeHeads * kWeightRow * 4;   // [16][Dk]
  static_assert(kQueries % 128 == 0);
  int table, keys, values, bytes;
  __host__ __device__ DecodeShared(int Dk, int Dv, int rows, int table_rows, int scores) {
    table = kQueries + kDecodeHeads * Dk * 2;
    keys = table + (table_rows * kDecodeHeads * 4 + 127) / 128 * 128;
    values = keys + rows * Dk * 2;
    bytes = values + rows * Dv * 2;
    if (keys + scores * 4 > bytes) bytes = keys + scores * 4;
  }
};
// Rows of a tile of a chosen block.
[[nodiscard]] __host__ __device__ inline int chosen_rows(const Geometry& g) {
  return g.l_sel < kDecodeKeys ? (g.l_sel + 15) / 16 * 16 : kDecodeKeys;
}

// Of the second launch.
[[nodiscard]] inline DecodeShared second_shared(const Decode& p, const DecodeCuts& cuts) {
  const int selected = cuts.first + cuts.last + cuts.chosen;
  const bool chooses = cuts.chosen > 0;
  const int table = std::max(cuts.compressed * (chooses ? 2 : 1) + cuts.window, selected);  // and the tiles' edges
  return {p.Dk, p.Dv, chooses ? chosen_rows(p.geometry) : 0, table, chooses ? p.t / p.geometry.l_sel : 0};
}

// In the order of the pairs.
struct DecodeWork {
  float* o = nullptr;       // [pairs][parts][h][Dv]: sums of weights times values
  float2* stats = nullptr;  // [pairs][parts][16]: what the weights' powers are counted from, and the weights' sum
  float* scores = nullptr;  // [pairs][compressed][tile_blocks + 1][16]: of the blocks of a tile, and of the next one
  float* base = nullptr;    // [pairs][h][Dv]: the gated compressed and window branch
  int* finished = nullptr;  // [pairs]: CTAs of the second launch
  std::int64_t bytes = 0;
  DecodeWork(const Decode& p, const DecodeCuts& cuts) {
    Arena arena(p.workspace);
    const std::int64_t pairs = std::int64_t{p.B} * p.G, rows = std::int64_t{p.Hq / p.G} * p.Dv;
    o = arena.take<float>(pairs * cuts.parts() * rows);
    stats = arena.take<float2>(pairs * cuts.parts() * kDecodeHeads);
    scores = arena.take<float>(pairs * cuts.compressed * (cuts.tile_blocks + 1) * kDecodeHeads);
    base = arena.take<float>(pairs * rows);
    finished = arena.take<int>(pairs);
    bytes = arena.most();
  }
};

}  // namespace nsa::kernels
