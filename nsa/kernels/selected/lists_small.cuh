// The lists of small problems in one launch: latency, not work, is what they cost.
//
// Every CTA of a set looks at all of its tokens and finds all lengths, so that none waits for another, and puts the
// tokens of its own share of the lists into their places.
//
//   rows of the table ──> of every block one bit a token, in words of 32
//   a warp a list:    its words' bits counted ──> lengths, their running sums
//   a warp, 8 words:  the bits' tokens, one beside the other
#pragma once

#include "nsa/kernels/selected/forced.cuh"
#include "nsa/kernels/selected/lists_plan.hpp"

namespace nsa::kernels {

// A token in its document.
struct Token {
  int local, first_block;  // its number there; the number of the document's first block among all documents'
  __device__ Token(const Inverse& p, int t)
      : local(t - (p.packed.first_token ? p.packed.first_token[t] : 0)),
        first_block(p.document_blocks ? p.document_blocks[t] : 0) {}
  // Whether a number of its row is to be found in a list.
  __device__ bool wants(const Inverse& p, int number) const {
    return number >= 0 && static_cast<std::int64_t>(number) * p.geometry.l_sel <= local &&
           (p.forced || !is_forced(number, local, p.geometry.l_sel));
  }
};

// The sums of x over the CTA's threads before this one, and over all in `total`.
template <int Threads>
__device__ int scan_block(int x, int* sums, int& total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  int sum = x;
  for (int d = 1; d < 32; d *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += before;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  int warps = lane < Threads / 32 ? sums[lane] : 0;
  for (int d = 1; d < 32; d *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, warps, d);
    if (lane >= d) warps += before;
  }
  total = __shfl_sync(0xffffffffu, warps, 31);
  const int before_warp = __shfl_sync(0xffffffffu, warps, (warp + 31) % 32);
  __syncthreads();
  return sum - x + (warp > 0 ? before_warp : 0);
}

// Set blockIdx.y; blockIdx.x is the share.
struct SmallWork {
  static constexpr int kThreads = 512, kWarps = kThreads / 32, kPiece = 8;  // words

  Inverse p;
  int end;                      // of the tokens
  int row;                      // numbers in a row of the table
  int step_tokens, step_slots;  // from one number of a thread to its next
  int pairs, stretch, words;    // of a list

  __host__ __device__ int pitch() const { return words | 1; }  // the words of 32 lists fall into all banks
  static_assert(InversePlan::kSmallLists <= kThreads);
  [[nodiscard]] __host__ int bytes() const { return (p.J * pitch() + p.J) * 4; }
};

__global__ void __launch_bounds__(SmallWork::kThreads) small_lists_kernel(const __grid_constant__ SmallWork w) {
  extern __shared__ unsigned bits[];
  __shared__ int sums[32];
  const Inverse& p = w.p;
  const int J = p.J, n = p.geometry.n, lane = threadIdx.x & 31, warp = threadIdx.x / 32, pitch = w.pitch();
  int* const lengths = reinterpret_cast<int*>(bits + J * pitch);  // later: the lists' first entries
  const int set = blockIdx.y, pair = set % w.pairs, b = pair / p.G, group = pair % p.G;
  const int first = p.begin + set / w.pairs * w.stretch, last = min(first + w.stretch, w.end);
  const bool left_out = p.unless && p.unless[set / w.pairs];
  const int* const rows = p.blocks + (static_cast<std::int64_t>(b) * p.S + first) * w.row + group * n;

  for (int i = threadIdx.x; i < J * pitch; i += SmallWork::kThreads) bits[i] = 0;
  __syncthreads();
  const int numbers = left_out ? 0 : (last - first) * n;
  constexpr int kBatch = 8;  // asked for before the first is looked at
  int t = threadIdx.x / n, slot = threadIdx.x % n;
  for (int i = threadIdx.x; i < numbers; i += kBatch * SmallWork::kThreads) {
    int tokens[kBatch], number[kBatch];
#pragma unroll
    for (int x = 0; x < kBatch; ++x) {
      tokens[x] = t;
      number[x] = i + x * SmallWork::kThreads < numbers ? __ldg(rows + t * w.row + slot) : -1;
      t += w.step_tokens, slot += w.step_slots;
      if (slot >= n) slot -= n, ++t;
    }
#pragma unroll
    for (int x = 0; x < kBatch; ++x) {
      if (number[x] < 0) continue;
      const Token token(p, first + tokens[x]);
      if (token.wants(p, number[x]) && token.first_block + number[x] < J)
        atomicOr(&bits[(token.first_block + number[x]) * pitch + tokens[x] / 32], 1u << tokens[x] % 32);
    }
  }
  __syncthreads();
  for (int j = warp; j < J; j += SmallWork::kWarps) {
    int count = 0;
    for (int word = lane; word < w.words; word += 32) count += __popc(bits[j * pitch + word]);
    count = __reduce_add_sync(0xffffffffu, count);
    if (lane == 0) lengths[j] = count;
  }
  __syncthreads();
  int* const offsets = p.offsets + static_cast<std::int64_t>(set) * (J + 1);
  const int own_list = threadIdx.x, length = own_list < J ? lengths[own_list] : 0;
  int total;
  const int own_entry = set * w.stretch * n + scan_block<SmallWork::kThreads>(length, sums, total);
  if (own_list < J) {
    lengths[own_list] = own_entry;
    if (blockIdx.x == 0) offsets[own_list] = own_entry;
    if (blockIdx.x == 0 && own_list == J - 1) offsets[J] = own_entry + length;
  }
  __syncthreads();

  const int pieces = (w.words + SmallWork::kPiece - 1) / SmallWork::kPiece;
  const int lists = (J - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  for (int unit = warp; unit < lists * pieces; unit += SmallWork::kWarps) {
    const int j = static_cast<int>(blockIdx.x + unit / pieces * gridDim.x), begin = unit % pieces * SmallWork::kPiece;
    const unsigned* const list = bits + j * pitch;
    int before = 0;
    for (int word = lane; word < begin; word += 32) before += __popc(list[word]);
    int entry = lengths[j] + __reduce_add_sync(0xffffffffu, before);
    for (int word = begin; word < min(begin + SmallWork::kPiece, w.words); ++word) {
      const unsigned all = list[word];
      const int own = word * 32 + lane, at = entry + __popc(all & ((1u << lane) - 1));
      entry += __popc(all);
      if (!(all >> lane & 1)) continue;
      p.tokens[at] = first + own;
      if (p.places == nullptr) continue;
      const int* const row = rows + own * w.row;
      const int number = j - Token(p, first + own).first_block;
      int slot = 0;  // of the same numbers the first
      while (row[slot] != number) ++slot;
      p.places[at] = slot;
    }
  }
}

}  // namespace nsa::kernels
