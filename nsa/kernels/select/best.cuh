// The best of the scores that come by (Eq 11), kept by a warp for a few tokens at once, without a place
// for every score.
#pragma once

#include <cstdint>

#include "nsa/kernels/device/score.cuh"
#include "nsa/kernels/select.hpp"

namespace nsa::kernels {

constexpr unsigned kWarp = 0xffffffffu;
constexpr int kListRows = 4, kList = 32 * kListRows;  // entries of a token's list

// A block and its score_bits().
struct Entry {
  int bits, block;
};

// Keeps the `want` best of each list's `count` entries in their order, by one warp, and finds the least of their bits.
// A list of no more than `want` stays as it is. `least`: of the best `want` that are known, or -1.
//
// Note [Threshold]
// The want-th best is found by bisection of the bits, the entries lying in registers: a step is a comparison an entry
// and one sum over the warp, and it ends when a threshold parts exactly `want` from the rest, after a dozen steps as a
// rule. Ties are exact and cost nothing: of the entries equal to the threshold the first ones stay. Steps are chains of
// latencies, so several lists take theirs together, and their counts are bytes of one sum.
template <int Lists>
__device__ inline void keep_best(Entry* lists, const int (&count)[Lists], int (&least)[Lists], int want) {
  static_assert(Lists <= 4 && kList < 256);
  const int lane = threadIdx.x & 31;
  Entry entry[Lists][kListRows];
  // At least `want` are >= low; fewer are >= high, namely `above`, or exactly as many and low == high.
  unsigned low[Lists], high[Lists];
  int above[Lists] = {};
#pragma unroll
  for (int x = 0; x < Lists; ++x) {
    int best = -1;
#pragma unroll
    for (int r = 0; r < kListRows; ++r) {
      entry[x][r] = r * 32 + lane < count[x] ? lists[x * kList + r * 32 + lane] : Entry{-1, 0};
      best = max(best, entry[x][r].bits);
    }
    low[x] = max(least[x], 0);
    high[x] = count[x] > want ? __reduce_max_sync(kWarp, best) + 1 : low[x];
  }
  for (;;) {
    bool open = false;
    unsigned more = 0;
#pragma unroll
    for (int x = 0; x < Lists; ++x) {
      open |= high[x] - low[x] > 1;
#pragma unroll
      for (int r = 0; r < kListRows; ++r)
        more += (entry[x][r].bits >= static_cast<int>((low[x] + high[x]) / 2) ? 1u : 0u) << 8 * x;
    }
    if (!open) break;
    more = __reduce_add_sync(kWarp, more);
#pragma unroll
    for (int x = 0; x < Lists; ++x) {
      if (high[x] - low[x] <= 1) continue;
      const unsigned middle = (low[x] + high[x]) / 2;
      const int own = more >> 8 * x & 255;
      if (own >= want) low[x] = middle;
      if (own <= want) high[x] = middle, above[x] = own;
    }
  }

  __syncwarp();  // all lanes have read; the collectives above order no accesses to memory
  const unsigned before = (1u << lane) - 1;
#pragma unroll
  for (int x = 0; x < Lists; ++x) {
    if (count[x] <= want) continue;
    int ties = want - above[x], kept = 0, lowest = kNaNScore;
#pragma unroll
    for (int r = 0; r < kListRows; ++r) {
      const int bits = entry[x][r].bits;
      const bool tie = bits == static_cast<int>(low[x]) && low[x] != high[x];
      const unsigned tied = __ballot_sync(kWarp, tie);
      const bool stays = bits >= static_cast<int>(high[x]) || (tie && __popc(tied & before) < ties);
      const unsigned staying = __ballot_sync(kWarp, stays);
      if (stays) {
        lists[x * kList + kept + __popc(staying & before)] = entry[x][r];
        lowest = min(lowest, bits);
      }
      kept += __popc(staying);
      ties -= min(ties, __popc(tied));
    }
    least[x] = __reduce_min_sync(kWarp, lowest);
  }
  __syncwarp();
}

// The lists of up to four tokens: lane holds the state of token lane % Tokens. Lanes that hold the same token agree.
template <int Tokens>
struct Best {
  int last;       // highest block that may be chosen by score (the lowest is 1); 0: none
  int count = 0;  // entries in the list, ascending in the block
  int least =
      -1;  // of the bits of the best `want` known: what is not above them is not among the best (a tie is later)

  // Offers eight consecutive blocks, lane / 4 the lane's; the lane's score is its token's. `lists` are
  // the tokens' lists.
  __device__ void offer(Entry* lists, int block, float score, int want) {
    const int lane = threadIdx.x & 31, token = lane % Tokens;
    const int bits = score_bits(score);
    const bool taken = lane % 4 < Tokens && block >= 1 && block <= last && bits > least;
    const unsigned all = __ballot_sync(kWarp, taken);
    if (all == 0) return;
    const unsigned own = all & (0x11111111u << token);
    if (taken) lists[token * kList + count + __popc(own & ((1u << lane) - 1))] = {bits, block};
    count += __popc(own);
    if (__any_sync(kWarp, count > kList - 8)) compact(lists, want);
  }
  __device__ void compact(Entry* lists, int want) {
    __syncwarp();
    for (int token = 0; token < Tokens; ++token) {
      const int entries[1] = {__shfl_sync(kWarp, count, token)};
      if (entries[0] <= want) continue;
      int bits[1] = {-1};
      keep_best(lists + token * kList, entries, bits, want);
      if (static_cast<int>(threadIdx.x % Tokens) == token) count = want, least = bits[0];
    }
  }
};

// The lists of a warp's tokens where each lane looks at all of them: the lanes agree on the state.
template <int Tokens>
struct BestOfWarp {
  int last[Tokens], count[Tokens] = {}, least[Tokens];  // as above

  // Offers 32 consecutive blocks, each lane one, with a score for every token.
  __device__ void offer(Entry* lists, int block, const float (&score)[Tokens], int want) {
    unsigned taken[Tokens], any = 0;
#pragma unroll
    for (int x = 0; x < Tokens; ++x) {
      taken[x] = __ballot_sync(kWarp, block >= 1 && block <= last[x] && score_bits(score[x]) > least[x]);
      any |= taken[x];
    }
    if (any == 0) return;
    const int lane = threadIdx.x & 31;
    bool full = false;
#pragma unroll
    for (int x = 0; x < Tokens; ++x) {
      if (taken[x] >> lane & 1)
        lists[x * kList + count[x] + __popc(taken[x] & ((1u << lane) - 1))] = {score_bits(score[x]), block};
      count[x] += __popc(taken[x]);
      full |= count[x] > kList - 32;
    }
    if (full) compact(lists, want);
  }
  __device__ void compact(Entry* lists, int want) {
    __syncwarp();
    keep_best(lists, count, least, want);
#pragma unroll
    for (int x = 0; x < Tokens; ++x) count[x] = min(count[x], want);
  }
};
static_assert(kMostBlocks - 3 <= kList - 32);  // what is kept has to be well below kList

}  // namespace nsa::kernels
