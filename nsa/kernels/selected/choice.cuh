// A row of the block table as the list of tokens that its query sees.
#pragma once

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

// All threads of the CTA call it; `tokens` has room for n * l_sel numbers in shared memory. Blocks that start after
// token t and repeated numbers are ignored, so any row is safe. Returns how many tokens are visible: those <= t, of
// each chosen block in the row's order. Synchronises the CTA.
template <int Threads>
__device__ inline int visible_tokens(int* tokens, const int* row, int n, int l_sel, int t, int first_token) {
  __shared__ int visible;
  const int last = (t - first_token) / l_sel;  // the query's own block
  const auto is_new = [&](int place) {
    const int block = row[place];
    if (block < 0 || block > last) return false;
    for (int i = 0; i < place; ++i)
      if (row[i] == block) return false;
    return true;
  };
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    int written = 0;
    for (int first = 0; first < n; first += 32) {
      const bool chosen = first + lane < n && is_new(first + lane);
      const int begin = chosen ? first_token + row[first + lane] * l_sel : 0;
      const int length = chosen ? min(l_sel, t + 1 - begin) : 0;
      int end = length;  // inclusive prefix sum over the lanes
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, end, step);
        if (lane >= step) end += other;
      }
      for (int source = 0; source < min(32, n - first); ++source) {
        const int from = __shfl_sync(0xffffffffu, begin, source), count = __shfl_sync(0xffffffffu, length, source);
        const int at = written + __shfl_sync(0xffffffffu, end, source) - count;
        for (int i = lane; i < count; i += 32) tokens[at + i] = from + i;
      }
      written += __shfl_sync(0xffffffffu, end, 31);
    }
    if (lane == 0) visible = written;
  }
  __syncthreads();
  return visible;
}

}  // namespace nsa::kernels
