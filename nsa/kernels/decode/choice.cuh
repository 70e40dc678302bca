// The choice of a group's blocks (Eq 10 and 11) from what the tiles have left, by a CTA. Every CTA that attends over a
// chosen block makes it for itself: 64 bytes a block from L2, instead of a wait for another CTA.
//
//   ask for all statistics, edges and scores at once ─> tiles' powers ─> sums over the heads ─> the best
//
// A row of scores is 16 heads, four lanes' 16 bytes. A quad sums the rows 1 + quad, 65 + quad ..., and keeps its best.
#pragma once

#include "nsa/kernels/decode/tile.cuh"
#include "nsa/kernels/select.hpp"

namespace nsa::kernels {

inline constexpr int kDecodeQuads = kDecodeThreads / 4;  // each has a share of the blocks
static_assert(kMostBlocks <= kDecodeQuads);              // as many bests as are taken

// Where the choice's things lie, from DecodeShared::keys on.
struct ChoiceRoom {
  float *table, *edges;    // [tiles][16]: powers, and what every tile's keys give to the next tile's first block
  std::uint64_t* rivals;   // in their place when the sums are made: keys of what may be among the best
  int* bits;               // [last + 1]
  std::uint64_t* bests;    // [kDecodeQuads], in the place of weights that are not made yet
  std::uint64_t* least;    // the last of the quads' bests that must be looked at
  int* count;              // of rivals
  __device__ ChoiceRoom(char* shared, const DecodeShared& at, const DecodeCuts& cuts)
      : table(reinterpret_cast<float*>(shared + at.keys)),
        edges(table + cuts.compressed * kDecodeHeads),
        rivals(reinterpret_cast<std::uint64_t*>(table)),
        bits(reinterpret_cast<int*>(shared + at.keys + cuts.bits_at)),
        bests(reinterpret_cast<std::uint64_t*>(shared + DecodeShared::kWeights)),
        least(bests + kDecodeQuads),
        count(reinterpret_cast<int*>(least + 1)) {}
};

// The bits of a score, which is never negative, so that they order as it does; a NaN counts as larger than every
// number: it is chosen, so it is seen.
__device__ inline int score_bits(float score) {
  constexpr int kNaN = 0x7f800001;
  return min(__float_as_int(score) & 0x7fffffff, kNaN);
}
// Orders by score, the lower block first among equals. No block: 0.
__device__ inline std::uint64_t key_of(int bits, int block) {
  return static_cast<std::uint64_t>(static_cast<unsigned>(bits)) << 32 | ~static_cast<unsigned>(block);
}
__device__ inline int block_of(std::uint64_t key) { return static_cast<int>(~static_cast<unsigned>(key)); }

// The scores of kAtOnce blocks of every quad, a quarter of the heads each.
struct ScoreRows {
  static constexpr int kAtOnce = 16;
  float4 own[kAtOnce];
  // Of the blocks from `first` on.
  __device__ void load(const float* scores, const DecodeCuts& cuts, int first, int last) {
    const int quad = static_cast<int>(threadIdx.x) / 4, quarter = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = first + quad + i * kDecodeQuads;
      if (j <= last)
        own[i] = reinterpret_cast<const float4*>(scores)[(j + cuts.tile_of(j)) * (kDecodeHeads / 4) + quarter];
    }
  }
};

// Powers of the tiles against each other into table[tile][head], and of this thread's four heads 1 over the sum of all.
struct TilePowers {
  static constexpr int kLanes = kDecodeThreads / kDecodeHeads, kKept = 4;  // up to 8192 compressed keys
  float2 kept[kKept];
  const float2* stats;
  int count, head = static_cast<int>(threadIdx.x) % kDecodeHeads, lane = static_cast<int>(threadIdx.x) / kDecodeHeads;

  __device__ TilePowers(const float2* from, int tiles) : stats(from), count(tiles) {
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int i = lane + k * kLanes;
      kept[k] = i < count ? stats[i * kDecodeHeads + head] : make_float2(-INFINITY, 0);
    }
  }
  // By all threads together; ends with them together.
  __device__ void weigh(float* table, char* shared, float (&inverse)[4]) const {
    float* const maxima = reinterpret_cast<float*>(shared + DecodeShared::kSums);  // [8][16], and sums
    float* const sums = maxima + kDecodeWarps * kDecodeHeads;
    const int warp = static_cast<int>(threadIdx.x) / 32, quarter = static_cast<int>(threadIdx.x) % 4;
    const bool writes = lane % 2 == 0;  // a warp has each head twice
    float origin = fmaxf(fmaxf(kept[0].x, kept[1].x), fmaxf(kept[2].x, kept[3].x));
#pragma unroll 1
    for (int i = lane + kKept * kLanes; i < count; i += kLanes) origin = fmaxf(origin, stats[i * kDecodeHeads + head].x);
    origin = fmaxf(origin, __shfl_xor_sync(0xffffffffu, origin, 16));
    if (writes) maxima[warp * kDecodeHeads + head] = origin;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) origin = fmaxf(origin, maxima[w * kDecodeHeads + head]);
    float sum = 0;
    const auto add = [&](int i, const float2& part) {
      const float power = whole_power(part.x - origin);
      table[i * kDecodeHeads + head] = power;
      sum = fmaf(power, part.y, sum);
    };
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (lane + k * kLanes < count) add(lane + k * kLanes, kept[k]);
#pragma unroll 1
    for (int i = lane + kKept * kLanes; i < count; i += kLanes) add(i, stats[i * kDecodeHeads + head]);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    if (writes) sums[warp * kDecodeHeads + head] = sum;
    __syncthreads();
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float4 x = reinterpret_cast<const float4*>(sums + w * kDecodeHeads)[quarter];
      all.x += x.x, all.y += x.y, all.z += x.z, all.w += x.w;
    }
    inverse[0] = 1.f / all.x, inverse[1] = 1.f / all.y, inverse[2] = 1.f / all.z, inverse[3] = 1.f / all.w;
  }
};

// The best of a quad's blocks so far.
struct QuadBest {
  int bits = -1, block = 0;
  [[nodiscard]] __device__ std::uint64_t key() const { return bits < 0 ? 0 : key_of(bits, block); }
};
// Sums over the heads of the rows that a quad has, in order; their bits go to room.bits.
__device__ inline void sum_rows(QuadBest& best, const ScoreRows& rows, const ChoiceRoom& room, const DecodeCuts& cuts,
                                const float (&inverse)[4], int first, int last, int heads) {
  const int quad = static_cast<int>(threadIdx.x) / 4, quarter = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < ScoreRows::kAtOnce; ++i) {
    if (first + i * kDecodeQuads > last) break;  // for all threads alike
    const int j = first + quad + i * kDecodeQuads, tile = cuts.tile_of(j);
    float sum = 0;
    if (j <= last) {
      const float4* const table = reinterpret_cast<const float4*>(room.table) + tile * 4 + quarter;
      const float4 x = rows.own[i], w = *table;
      float4 share = make_float4(x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w);
      if (j == tile * cuts.tile_blocks && tile > 0) {
        const float4 e = reinterpret_cast<const float4*>(room.edges)[(tile - 1) * 4 + quarter], v = table[-4];
        share.x = fmaf(e.x, v.x, share.x), share.y = fmaf(e.y, v.y, share.y);
        share.z = fmaf(e.z, v.z, share.z), share.w = fmaf(e.w, v.w, share.w);
      }
      if (quarter * 4 < heads) sum = share.x * inverse[0];
      if (quarter * 4 + 1 < heads) sum = fmaf(share.y, inverse[1], sum);
      if (quarter * 4 + 2 < heads) sum = fmaf(share.z, inverse[2], sum);
      if (quarter * 4 + 3 < heads) sum = fmaf(share.w, inverse[3], sum);
    }
    const int bits = score_bits(quad_sum(sum));
    if (j <= last && quarter == 0) room.bits[j] = bits;
    if (j <= last && bits > best.bits) best = {bits, j};
  }
}

// The `wanted` best of the blocks 1 .. last into `list`, the best first, ties by number. `best`: of this thread's quad.
//
// Note [Rivals]
// Of the quads' bests the `wanted`-th is a bound: so many blocks are at least as good, and whatever is among the best is.
// As a rule few more are, and of those everyone counts who is better.
__device__ inline void choose_blocks(int* list, const ChoiceRoom& room, std::uint64_t best, int last, int wanted) {
  const int thread = static_cast<int>(threadIdx.x), quad = thread / 4, quarter = thread % 4;
  if (quarter == 0) room.bests[quad] = best;
  if (thread == 0) *room.count = 0;
  __syncthreads();
  int better = 0;
#pragma unroll
  for (int i = 0; i < kDecodeQuads / 4; ++i) better += room.bests[quarter + i * 4] > best ? 1 : 0;
  better += __shfl_xor_sync(0xffffffffu, better, 1);
  better += __shfl_xor_sync(0xffffffffu, better, 2);
  if (quarter == 0 && better == wanted - 1) *room.least = best;
  __syncthreads();
  const std::uint64_t least = *room.least;
  if (best >= least)  // else none of the quad's is
#pragma unroll 1
    for (int j = 1 + quad + quarter * kDecodeQuads; j <= last; j += 4 * kDecodeQuads) {
      const std::uint64_t key = key_of(room.bits[j], j);
      if (key >= least) room.rivals[atomicAdd(room.count, 1)] = key;
    }
  __syncthreads();
  const int count = *room.count;
  constexpr int kLanes = 8;
#pragma unroll 1
  for (int from = 0; from < count; from += kDecodeThreads / kLanes) {
    const int i = from + thread / kLanes;
    const std::uint64_t own = i < count ? room.rivals[i] : 0;
    int place = 0;
#pragma unroll 2
    for (int k = thread % kLanes; k < count; k += kLanes) place += room.rivals[k] > own ? 1 : 0;
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) place += __shfl_xor_sync(0xffffffffu, place, mask);
    if (i < count && thread % kLanes == 0 && place < wanted) list[place] = block_of(own);
  }
  __syncthreads();
}

}  // namespace nsa::kernels
