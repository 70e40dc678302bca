// The work items of the selected branch from the keys' side (parts.cuh, parts_backward.cuh).
#pragma once

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/pieces.cuh"

namespace nsa::kernels::hopper {

// The work of a chunk: pieces of its lists. All that a CTA must know stands in its item, so that copies
// and the rows' tokens are asked for after one load.
struct alignas(16) Item {
  int entry;        // its first one in the lists' tokens and places
  int tokens;       // entries; 0: nothing to do
  int first, last;  // keys of the block
  // Which piece of which block's list; not for parts_kernel.
  int block, piece;
};
// Of every set of lists (selected/lists.hpp): those of a chunk and a turn of pairs stand one after the other.
struct Items {
  Item* data = nullptr;  // [sets][capacity]
  int capacity = 0;      // enough for a set: entries / tokens of a piece + lists
};

// A CTA a set. Long pieces come first, so that the last CTAs of parts_kernel are short ones, and what
// is left of the capacity stands at the end. The order of pieces of one length is left to chance: no result
// hangs on it.
static __global__ void __launch_bounds__(1024)
    items_kernel(const QueryLists lists, const SelectionBlocks selection, const int S, const int l_sel,
                 const int tokens, const Items items) {
#if NSA_ON_HOPPER
  constexpr int kLengths = 32;  // that are told apart
  __shared__ int places[kLengths + 1];
  Item* const own = items.data + static_cast<std::int64_t>(blockIdx.x) * items.capacity;
  const int* offsets = lists.offset(static_cast<int>(blockIdx.x), 0, selection.J);
  // of pieces with so many tokens, the longest ones in the first
  const auto length = [&](int count) { return kLengths - (count * kLengths + tokens - 1) / tokens; };
  if (threadIdx.x <= kLengths) places[threadIdx.x] = 0;
  __syncthreads();
  for (int j = threadIdx.x; j < selection.J; j += 1024) {
    const int entries = offsets[j + 1] - offsets[j], rest = entries % tokens;
    if (entries >= tokens) atomicAdd(&places[1], entries / tokens);
    if (rest > 0) atomicAdd(&places[length(rest) + 1], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 0; i < kLengths; ++i) places[i + 1] += places[i];
  __syncthreads();
  const int used = places[kLengths];
  __syncthreads();
  for (int j = threadIdx.x; j < selection.J; j += 1024) {
    const int begin = offsets[j], entries = offsets[j + 1] - begin, rest = entries % tokens;
    const int first = selection.starts ? selection.starts[j] : j * l_sel;
    const int last = selection.ends ? selection.ends[j] : min(S, first + l_sel);
    if (entries >= tokens) {
      const int place = atomicAdd(&places[0], entries / tokens);
      for (int i = 0; i < entries / tokens; ++i) own[place + i] = {begin + i * tokens, tokens, first, last, j, i};
    }
    if (rest > 0)
      own[atomicAdd(&places[length(rest)], 1)] = {begin + entries - rest, rest, first, last, j, entries / tokens};
  }
  for (int i = used + static_cast<int>(threadIdx.x); i < items.capacity; i += 1024) own[i] = {};
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
