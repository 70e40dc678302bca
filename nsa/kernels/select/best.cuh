// The best of the scores that come by (Eq 11), kept by a warp for a few tokens at once, without a place for every
// score.
#pragma once

#include <cstdint>

namespace nsa::kernels {

constexpr unsigned kWarp = 0xffffffffu;
constexpr int kListRows = 4, kList = 32 * kListRows;  // entries of a token's list
constexpr int kMostBlocks = 64;                       // n: what is kept has to be well below kList

// A block and the bits of its score, which is never negative, so that they order as it does. A NaN counts as larger
// than every number: it is chosen, so it is seen.
constexpr int kNaN = 0x7f800001;
struct Entry {
  int bits, block;
};
__device__ inline int bits_of(float score) { return min(__float_as_int(score) & 0x7fffffff, kNaN); }

// Keeps the `want` best of the list's `count` entries in their order, by one warp, and returns the least of their bits.
//
// Note [Threshold]
// The want-th best is found by bisection of the bits, the entries lying in registers: a step is a comparison an entry
// and one sum over the warp, and it ends when a threshold parts exactly `want` from the rest, after a dozen steps as a
// rule. Ties are exact and cost nothing: of the entries equal to the threshold the first ones stay.
__device__ inline int keep_best(Entry* list, int count, int want) {
  const int lane = threadIdx.x & 31;
  Entry entry[kListRows];
  int best = -1;
#pragma unroll
  for (int r = 0; r < kListRows; ++r) {
    entry[r] = r * 32 + lane < count ? list[r * 32 + lane] : Entry{-1, 0};
    best = max(best, entry[r].bits);
  }
  // At least `want` are >= low; fewer are >= high, namely `above`, or exactly as many and low == high.
  unsigned low = 0, high = __reduce_max_sync(kWarp, best) + 1;
  int above = 0;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    int more = 0;
#pragma unroll
    for (int r = 0; r < kListRows; ++r) more += entry[r].bits >= static_cast<int>(middle);
    more = __reduce_add_sync(kWarp, more);
    if (more >= want) low = middle;
    if (more <= want) high = middle, above = more;
  }

  __syncwarp();  // all lanes have read; the collectives above order no accesses to memory
  int ties = want - above, kept = 0, least = kNaN;
  const unsigned before = (1u << lane) - 1;
#pragma unroll
  for (int r = 0; r < kListRows; ++r) {
    const int bits = entry[r].bits;
    const bool tie = bits == static_cast<int>(low) && low != high;
    const unsigned tied = __ballot_sync(kWarp, tie);
    const bool stays = bits >= static_cast<int>(high) || (tie && __popc(tied & before) < ties);
    const unsigned staying = __ballot_sync(kWarp, stays);
    if (stays) {
      list[kept + __popc(staying & before)] = entry[r];
      least = min(least, bits);
    }
    kept += __popc(staying);
    ties -= min(ties, __popc(tied));
  }
  __syncwarp();
  return __reduce_min_sync(kWarp, least);
}

// The lists of up to four tokens: lane holds the state of token lane % Tokens. Lanes that hold the same token agree.
template <int Tokens>
struct Best {
  int last;       // highest block that may be chosen by score (the lowest is 1); 0: none
  int count = 0;  // entries in the list, ascending in the block
  int least =
      -1;  // of the bits of the best `want` known: what is not above them is not among the best (a tie is later)

  // Offers eight consecutive blocks, lane / 4 the lane's; the lane's score is its token's. `lists` are the tokens'
  // lists.
  __device__ void offer(Entry* lists, int block, float score, int want) {
    const int lane = threadIdx.x & 31, token = lane % Tokens;
    const int bits = bits_of(score);
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
      const int entries = __shfl_sync(kWarp, count, token);
      if (entries <= want) continue;
      const int bits = keep_best(lists + token * kList, entries, want);
      if (static_cast<int>(threadIdx.x % Tokens) == token) count = want, least = bits;
    }
  }
};

// The list of one token, for which the whole warp works: its lanes agree on the state.
struct BestOfToken {
  int last = 0;  // as above
  int count = 0;
  int least = -1;

  // Offers 32 consecutive blocks, each lane one.
  __device__ void offer(Entry* list, int block, float score, int want) {
    const int lane = threadIdx.x & 31, bits = bits_of(score);
    const bool taken = block >= 1 && block <= last && bits > least;
    const unsigned all = __ballot_sync(kWarp, taken);
    if (all == 0) return;
    if (taken) list[count + __popc(all & ((1u << lane) - 1))] = {bits, block};
    count += __popc(all);
    if (count > kList - 32) compact(list, want);
  }
  __device__ void compact(Entry* list, int want) {
    __syncwarp();
    if (count <= want) return;
    least = keep_best(list, count, want);
    count = want;
  }
};
static_assert(kMostBlocks - 3 <= kList - 32);

}  // namespace nsa::kernels
