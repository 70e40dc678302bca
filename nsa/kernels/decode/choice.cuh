// The choice of a group's blocks (Eq 11), by a CTA. Every CTA that attends over a chosen block makes it for itself: 4
// bytes a block from L2, instead of a wait for another CTA.
#pragma once

#include "nsa/kernels/decode/totals.cuh"
#include "nsa/kernels/select.hpp"

namespace nsa::kernels {

static_assert(kMostBlocks <= kDecodeQuads);  // as many quads as blocks are taken

// Orders by score, the lower block first among equals. No block: 0.
__device__ inline std::uint64_t key_of(int bits, int block) {
  return static_cast<std::uint64_t>(static_cast<unsigned>(bits)) << 32 | ~static_cast<unsigned>(block);
}
__device__ inline int block_of(std::uint64_t key) { return static_cast<int>(~static_cast<unsigned>(key)); }

// Scores of this thread's blocks. A quad has the blocks 1 + quad, 65 + quad ...: those that score alike, neighbours,
// are in different quads.
struct OwnBlocks {
  static constexpr int kAtOnce = 4;
  static constexpr int kRound = kAtOnce * kDecodeThreads;
  int bits[kAtOnce];
  __device__ static int block(int first, int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return first + thread / 4 + (thread % 4 + i * 4) * kDecodeQuads;
  }
  __device__ OwnBlocks(const int* totals, int first, int last) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) bits[i] = block(first, i) <= last ? totals[block(first, i)] : -1;
  }
  // action(key) for every block there is.
  template <typename Action>
  __device__ void each(int first, Action&& action) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (bits[i] >= 0) action(key_of(bits[i], block(first, i)));
  }
};
__device__ inline std::uint64_t larger(std::uint64_t a, std::uint64_t b) { return a > b ? a : b; }

// The `wanted` best of the blocks 1 .. last into `list`, the best first, ties by number. `bests` [kDecodeQuads + 1] and
// `rivals` are room for it. By all threads together.
//
// Note [Rivals]
// Of the quads' bests the `wanted`-th is a bound: so many blocks are at least as good, and whatever is among the best
// is. As a rule few more are. Of those everyone counts who is better.
__device__ inline void choose_blocks(int* list, std::uint64_t* bests, std::uint64_t* rivals, const int* totals,
                                     int last, int wanted) {
  __shared__ int count;
  constexpr unsigned kAll = 0xffffffffu;
  const int thread = static_cast<int>(threadIdx.x), quad = thread / 4, quarter = thread % 4;
  const OwnBlocks own(totals, 1, last);
  std::uint64_t best = 0;
  const auto look = [&](std::uint64_t key) { best = larger(best, key); };
  own.each(1, look);
#pragma unroll 1
  for (int from = 1 + OwnBlocks::kRound; from <= last; from += OwnBlocks::kRound)
    OwnBlocks(totals, from, last).each(from, look);
  best = larger(best, __shfl_xor_sync(kAll, best, 1));
  best = larger(best, __shfl_xor_sync(kAll, best, 2));
  if (quarter == 0) bests[quad] = best;
  if (thread == 0) count = 0;
  __syncthreads();
  int better = 0;
#pragma unroll
  for (int i = 0; i < kDecodeQuads / 4; ++i) better += bests[quarter + i * 4] > best ? 1 : 0;
  better += __shfl_xor_sync(kAll, better, 1);
  better += __shfl_xor_sync(kAll, better, 2);
  if (quarter == 0 && better == wanted - 1) bests[kDecodeQuads] = best;
  __syncthreads();
  const std::uint64_t least = bests[kDecodeQuads];
  const auto enter = [&](const OwnBlocks& blocks, int first) {
    int mine = 0;
    blocks.each(first, [&](std::uint64_t key) { mine += key >= least ? 1 : 0; });
    if (mine == 0) return;
    int at = atomicAdd(&count, mine);
    blocks.each(first, [&](std::uint64_t key) {
      if (key >= least) rivals[at++] = key;
    });
  };
  if (best >= least) {  // else none of the quad's is
    enter(own, 1);
#pragma unroll 1
    for (int from = 1 + OwnBlocks::kRound; from <= last; from += OwnBlocks::kRound)
      enter(OwnBlocks(totals, from, last), from);
  }
  __syncthreads();
  constexpr int kLanes = 8;
  const int all = count;
#pragma unroll 1
  for (int from = 0; from < all; from += kDecodeThreads / kLanes) {
    const int i = from + thread / kLanes;
    const std::uint64_t key = i < all ? rivals[i] : 0;
    int place = 0;
#pragma unroll 1
    for (int k = thread % kLanes; k < all; k += kLanes) place += rivals[k] > key ? 1 : 0;
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) place += __shfl_xor_sync(kAll, place, mask);
    if (i < all && thread % kLanes == 0 && place < wanted) list[place] = block_of(key);
  }
  __syncthreads();
}

}  // namespace nsa::kernels
