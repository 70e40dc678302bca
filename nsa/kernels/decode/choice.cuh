// The choice of a group's blocks (Eq 10 and 11) from what the tiles have left, by a CTA. Every CTA that attends over a
// chosen block makes it for itself: 64 bytes a block from L2, instead of a wait for another CTA.
#pragma once

#include "nsa/kernels/decode/tile.cuh"
#include "nsa/kernels/select.hpp"

namespace nsa::kernels {

// The weights of parts [first, first + count) of a pair against each other: table[part][head], powers of two, and
// inverse[head], 1 over the sum of all weights. Begins and ends with all threads together.
__device__ inline void weigh_parts(float* table, float* inverse, char* shared, const float2* stats, int count) {
  const int head = static_cast<int>(threadIdx.x) % kDecodeHeads, lane = static_cast<int>(threadIdx.x) / kDecodeHeads;
  constexpr int kLanes = kDecodeThreads / kDecodeHeads;
  float* const maxima = reinterpret_cast<float*>(shared + DecodeShared::kSums);  // [16][16], and sums
  float* const sums = maxima + kLanes * kDecodeHeads;
  __syncthreads();
  // What a thread looks at is loaded once, of up to 8192 compressed keys.
  constexpr int kKept = 4;
  float2 kept[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = lane + k * kLanes;
    kept[k] = i < count ? stats[i * kDecodeHeads + head] : make_float2(-INFINITY, 0);
  }
  float origin = -INFINITY;
#pragma unroll
  for (int k = 0; k < kKept; ++k) origin = fmaxf(origin, kept[k].x);
  for (int i = lane + kKept * kLanes; i < count; i += kLanes) origin = fmaxf(origin, stats[i * kDecodeHeads + head].x);
  maxima[lane * kDecodeHeads + head] = origin;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kLanes; ++i) origin = fmaxf(origin, maxima[i * kDecodeHeads + head]);
  float sum = 0;
  const auto weigh = [&](int i, const float2& part) {
    const float power = whole_power(part.x - origin);
    table[i * kDecodeHeads + head] = power;
    sum = fmaf(power, part.y, sum);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (lane + k * kLanes < count) weigh(lane + k * kLanes, kept[k]);
  for (int i = lane + kKept * kLanes; i < count; i += kLanes) weigh(i, stats[i * kDecodeHeads + head]);
  sums[lane * kDecodeHeads + head] = sum;
  __syncthreads();
  if (lane == 0) {
    sum = 0;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) sum += sums[i * kDecodeHeads + head];
    inverse[head] = 1.f / sum;
  }
  __syncthreads();
}

// The bits of a score, which is never negative, so that they order as it does; a NaN counts as larger than every
// number: it is chosen, so it is seen.
__device__ inline int score_bits(float score) {
  constexpr int kNaN = 0x7f800001;
  return min(__float_as_int(score) & 0x7fffffff, kNaN);
}
__device__ inline void load_row(float (&row)[kDecodeHeads], const float* from) {
#pragma unroll
  for (int i = 0; i < kDecodeHeads / 4; ++i) {
    const float4 x = reinterpret_cast<const float4*>(from)[i];
    row[4 * i] = x.x, row[4 * i + 1] = x.y, row[4 * i + 2] = x.z, row[4 * i + 3] = x.w;
  }
}
// What every tile's keys give to the next tile's first block: from [tiles] rows of the scores.
__device__ inline void load_edges(float* edges, const float* scores, const DecodeCuts& cuts) {
  for (int i = static_cast<int>(threadIdx.x); i < cuts.compressed * kDecodeHeads; i += kDecodeThreads)
    edges[i] = scores[score_row(cuts, i / kDecodeHeads, cuts.tile_blocks) + i % kDecodeHeads];
}
// Sum over the heads of their share `own` in block j.
__device__ inline float sum_of_heads(const float (&own)[kDecodeHeads], int j, const float* edges, const float* table,
                                     const float* inverse, const DecodeCuts& cuts, int heads) {
  const int tile = j / cuts.tile_blocks;
  const bool edge = j == tile * cuts.tile_blocks && tile > 0;
  float weights[kDecodeHeads], inverses[kDecodeHeads];
  load_row(weights, table + tile * kDecodeHeads);
  load_row(inverses, inverse);
  float sum = 0;
#pragma unroll
  for (int h = 0; h < kDecodeHeads; ++h) {
    if (h >= heads) break;
    float share = own[h] * weights[h];
    if (edge) share = fmaf(edges[(tile - 1) * kDecodeHeads + h], table[(tile - 1) * kDecodeHeads + h], share);
    sum = fmaf(share, inverses[h], sum);
  }
  return sum;
}

// The `wanted` best of the blocks 1 .. last into `list`, ascending; ties go to the lower number. `bits`: last + 1 ints.
//
// Note [Threshold]
// The last one that is taken is found by quartering the range of the scores' bits, which ends when a threshold parts
// exactly `wanted` from the rest, after half a dozen steps as a rule. A warp owns neighbouring blocks, so that ties are
// counted off in order.
__device__ inline void choose_blocks(int* list, int* bits, char* shared, int last, int wanted, const float* scores,
                                     const float* edges, const float* table, const float* inverse,
                                     const DecodeCuts& cuts, int heads) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) & 31;
  constexpr unsigned kAll = 0xffffffffu;
  uint2* const pairs = reinterpret_cast<uint2*>(shared + DecodeShared::kSums);  // [2][8] counts
  int* const counts = reinterpret_cast<int*>(pairs + 2 * kDecodeWarps);         // [3][8]
  const int each = (last + kDecodeThreads - 1) / kDecodeThreads * 32;
  const int begin = 1 + warp * each, end = min(begin + each, last + 1);

  int best = -1;
  constexpr int kAtOnce = 4;  // all of a warp's up to 1024 blocks
  for (int from = begin + lane; from < end; from += 32 * kAtOnce) {
    float own[kAtOnce][kDecodeHeads];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = min(from + i * 32, last), tile = j / cuts.tile_blocks;
      load_row(own[i], scores + score_row(cuts, tile, j - tile * cuts.tile_blocks));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = from + i * 32;
      if (j >= end) break;
      bits[j] = score_bits(sum_of_heads(own[i], j, edges, table, inverse, cuts, heads));
      best = max(best, bits[j]);
    }
  }
  best = __reduce_max_sync(kAll, best);
  if (lane == 0) counts[warp] = best;
  __syncthreads();
  for (int w = 0; w < kDecodeWarps; ++w) best = max(best, counts[w]);

  // At least `wanted` are >= low; fewer are >= high, namely `above`, or exactly as many and low == high. A step looks
  // at three thresholds, whose counts are halves of words.
  int low = 0, high = best + 1, above = 0;
  for (int step = 0; high - low > 1; ++step) {
    const int quarter = max((high - low) / 4, 1);
    const int threshold[3] = {low + quarter, min(low + 2 * quarter, high), min(low + 3 * quarter, high)};
    unsigned two = 0, third = 0;
    for (int j = begin + lane; j < end; j += 32) {
      const int own = bits[j];
      two += (own >= threshold[0] ? 1u : 0u) + (own >= threshold[1] ? 1u << 16 : 0u);
      third += own >= threshold[2] ? 1u : 0u;
    }
    two = __reduce_add_sync(kAll, two);
    third = __reduce_add_sync(kAll, third);
    uint2* const turn = pairs + step % 2 * kDecodeWarps;
    if (lane == 0) turn[warp] = make_uint2(two, third);
    __syncthreads();
    unsigned all[3] = {};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      all[0] += turn[w].x & 0xffff, all[1] += turn[w].x >> 16, all[2] += turn[w].y;
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int count = static_cast<int>(all[i]);
      if (count >= wanted && threshold[i] <= high) low = max(low, threshold[i]);
      if (count <= wanted && threshold[i] < high) high = threshold[i], above = count;
    }
  }
  const auto taken = [&](int j, bool& tie) {
    const int own = j < end ? bits[j] : -1;
    tie = own == low && low != high;
    return own >= high;
  };

  int* const of_above = counts + kDecodeWarps;
  int* const of_ties = of_above + kDecodeWarps;
  int higher = 0, tied = 0;
  for (int j = begin; j < end; j += 32) {
    bool tie;
    higher += __popc(__ballot_sync(kAll, taken(j + lane, tie)));
    tied += __popc(__ballot_sync(kAll, tie));
  }
  if (lane == 0) of_above[warp] = higher, of_ties[warp] = tied;
  __syncthreads();
  int place = 0, ties = wanted - above;  // before this warp's, and what is left of them
  for (int w = 0; w < warp; ++w) {
    const int filled = min(ties, of_ties[w]);
    place += of_above[w] + filled;
    ties -= filled;
  }
  const unsigned before = (1u << lane) - 1;
  for (int j = begin; j < end; j += 32) {
    bool tie;
    const bool sure = taken(j + lane, tie);
    const unsigned all_ties = __ballot_sync(kAll, tie);
    const bool stays = sure || (tie && __popc(all_ties & before) < ties);
    const unsigned staying = __ballot_sync(kAll, stays);
    if (stays) list[place + __popc(staying & before)] = j + lane;
    place += __popc(staying);
    ties -= min(ties, __popc(all_ties));
  }
  __syncthreads();
}

}  // namespace nsa::kernels
