// Where things lie: a CTA's shared memory, and the workspace. The plan counts with it what the kernels are given.
#pragma once

#include "nsa/kernels/plan/arena.hpp"
#include "nsa/kernels/plan/decode_plan.hpp"

namespace nsa::kernels {

inline constexpr int kDecodeThreads = 256, kDecodeWarps = kDecodeThreads / 32;

// Bytes from the beginning of dynamic shared memory: queries, weights in the storage type and in fp32, keys and values
// of a tile of `rows`. In the place of keys and values is what a choice needs, until it is made (`scratch` bytes).
struct DecodeShared {
  static constexpr int kWeightRow = kDecodeKeys + 4;  // floats
  static constexpr int kSums = 0;                     // [2][16][16] floats
  static constexpr int kSumFloats = 2 * kDecodeHeads * kDecodeHeads;
  static constexpr int kWeights = kSums + kSumFloats * 4;                         // [16][128] of 16 bits
  static constexpr int kWideWeights = kWeights + kDecodeHeads * kDecodeKeys * 2;  // [16][kWeightRow] floats
  static constexpr int kQueries = kWideWeights + kDecodeHeads * kWeightRow * 4;   // [16][Dk]
  static_assert(kQueries % 128 == 0);
  int keys, values, bytes;
  __host__ __device__ DecodeShared(int Dk, int Dv, int rows, int scratch) {
    keys = kQueries + kDecodeHeads * Dk * 2;
    values = keys + rows * Dk * 2;
    bytes = values + rows * Dv * 2;
    if (keys + scratch > bytes) bytes = keys + scratch;
  }
};
// Of the third launch: a choice must have room for all blocks of `wanted` quads.
[[nodiscard]] inline DecodeShared attend_shared(const Decode& p, const DecodeCuts& cuts) {
  const int scratch = cuts.chosen > 0 ? cuts.wanted * (cuts.current / (kDecodeThreads / 4) + 1) * 8 : 0;
  return {p.Dk, p.Dv, kDecodeKeys, scratch};
}

// In the order of the pairs.
struct DecodeWork {
  float* o = nullptr;        // [pairs][parts][h][Dv]: sums of weights times values
  float2* stats = nullptr;   // [pairs][parts][16]: what the weights' powers are counted from, and the weights' sum
  float* scores = nullptr;   // [pairs][compressed][tile_blocks + 1][16]: of the blocks of a tile, and of the next one
  int* totals = nullptr;     // [pairs][current]: bits of the blocks' scores over the heads
  uint4* weights = nullptr;  // [pairs][compressed][256]: of the compressed tiles, as shared memory has them
  std::int64_t bytes = 0;
  DecodeWork(const Decode& p, const DecodeCuts& cuts) {
    Arena arena(p.workspace);
    const std::int64_t pairs = std::int64_t{p.B} * p.G, tiles = cuts.chosen > 0 ? pairs * cuts.compressed : 0;
    o = arena.take<float>(pairs * cuts.parts() * cuts.heads * p.Dv);
    stats = arena.take<float2>(pairs * cuts.parts() * kDecodeHeads);
    scores = arena.take<float>(tiles * (cuts.tile_blocks + 1) * kDecodeHeads);
    totals = arena.take<int>(cuts.chosen > 0 ? pairs * cuts.current : 0);
    weights = arena.take<uint4>(tiles * kDecodeThreads);
    bytes = arena.most();
  }
  [[nodiscard]] __device__ float* o_of(const Decode& p, const DecodeCuts& cuts, int pair) const {
    return o + static_cast<std::int64_t>(pair) * cuts.parts() * cuts.heads * p.Dv;
  }
  [[nodiscard]] __device__ int* totals_of(const DecodeCuts& cuts, int pair) const {
    return totals + static_cast<std::int64_t>(pair) * cuts.current;
  }
  [[nodiscard]] __device__ float2* stats_of(const DecodeCuts& cuts, int pair) const {
    return stats + static_cast<std::int64_t>(pair) * cuts.parts() * kDecodeHeads;
  }
};

}  // namespace nsa::kernels
