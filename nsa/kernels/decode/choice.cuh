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
  float origin = -INFINITY;
#pragma unroll 4
  for (int i = lane; i < count; i += kLanes) origin = fmaxf(origin, stats[i * kDecodeHeads + head].x);
  maxima[lane * kDecodeHeads + head] = origin;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kLanes; ++i) origin = fmaxf(origin, maxima[i * kDecodeHeads + head]);
  float sum = 0;
  for (int i = lane; i < count; i += kLanes) {
    const float2 part = stats[i * kDecodeHeads + head];
    const float power = whole_power(part.x - origin);
    table[i * kDecodeHeads + head] = power;
    sum = fmaf(power, part.y, sum);
  }
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
// Sum over the heads of their share in block j. `scores` are the pair's.
__device__ inline float score_of(int j, const float* scores, const float* table, const float* inverse,
                                 const DecodeCuts& cuts, int heads) {
  const int tile = j / cuts.tile_blocks, place = j - tile * cuts.tile_blocks;
  const float* const from = scores + (static_cast<std::int64_t>(tile) * (cuts.tile_blocks + 1) + place) * kDecodeHeads;
  float own[kDecodeHeads], before[kDecodeHeads];
  load_row(own, from);
  const bool edge = place == 0 && tile > 0;
  if (edge) load_row(before, from - kDecodeHeads);  // the last row of the tile before
  float sum = 0;
#pragma unroll
  for (int h = 0; h < kDecodeHeads; ++h) {
    if (h >= heads) break;
    float share = own[h] * table[tile * kDecodeHeads + h];
    if (edge) share = fmaf(before[h], table[(tile - 1) * kDecodeHeads + h], share);
    sum = fmaf(share, inverse[h], sum);
  }
  return sum;
}

// The `wanted` best of the blocks 1 .. last into `list`, ascending; ties go to the lower number. `bits`: last + 1 ints.
//
// Note [Threshold]
// The last one that is taken is found by bisection of the scores' bits, which ends when a threshold parts exactly
// `wanted` from the rest, after a dozen steps as a rule. A warp owns neighbouring blocks, so that ties are counted off
// in order.
__device__ inline void choose_blocks(int* list, int* bits, char* shared, int last, int wanted, const float* scores,
                                     const float* table, const float* inverse, const DecodeCuts& cuts, int heads) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) & 31;
  constexpr unsigned kAll = 0xffffffffu;
  int* const counts = reinterpret_cast<int*>(shared + DecodeShared::kSums);  // [2][8], then [8] twice
  const int each = (last + kDecodeThreads - 1) / kDecodeThreads * 32;
  const int begin = 1 + warp * each, end = min(begin + each, last + 1);

  int best = -1;
  for (int j = begin + lane; j < end; j += 32) {
    bits[j] = score_bits(score_of(j, scores, table, inverse, cuts, heads));
    best = max(best, bits[j]);
  }
  best = __reduce_max_sync(kAll, best);
  if (lane == 0) counts[kDecodeWarps + warp] = best;
  __syncthreads();
  for (int w = 0; w < kDecodeWarps; ++w) best = max(best, counts[kDecodeWarps + w]);

  // At least `wanted` are >= low; fewer are >= high, namely `above`, or exactly as many and low == high.
  int low = 0, high = best + 1, above = 0;
  for (int step = 0; high - low > 1; ++step) {
    const int middle = low + (high - low) / 2;
    int own = 0;
    for (int j = begin + lane; j < end; j += 32) own += bits[j] >= middle ? 1 : 0;
    own = __reduce_add_sync(kAll, own);
    int* const turn = counts + step % 2 * kDecodeWarps;
    if (lane == 0) turn[warp] = own;
    __syncthreads();
    int all = 0;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) all += turn[w];
    if (all >= wanted) low = middle;
    if (all <= wanted) high = middle, above = all;
  }
  const auto taken = [&](int j, bool& tie) {
    const int own = j < end ? bits[j] : -1;
    tie = own == low && low != high;
    return own >= high;
  };

  int* const of_above = counts + 2 * kDecodeWarps;
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
