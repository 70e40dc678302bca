// Note [Counting sort]
// A chunk of tokens keeps, for every block, one bit a token in shared memory: repeated numbers of a row fall together,
// the number of bits is the chunk's count and the number of lower bits a token's place in the list, whatever order the
// threads come in. Three launches: counts of every chunk; their running sums over the chunks and over the lists; the
// tokens, put into their places. A chunk is 256 tokens, or as many times 256 as keep the counts within the workspace's
// limit (lists_plan.hpp).
//
// A set of lists is that of one pair (batch entry, group) and one stretch of tokens. Sets know nothing of each other:
// the tokens of each start at a place that the host knows.
//
// Small problems take one launch (lists_small.cuh). Loops that seldom go round twice are not unrolled: what a short
// kernel waits for is also its own code.
#include <algorithm>

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/selected/lists_small.cuh"

namespace nsa::kernels {

namespace {

// CTAs that an SM must hold: were it left open, the compiler would spill registers to make room for more.
constexpr int kListThreads = 512, kListResident = 2;
constexpr int kPartTokens = InversePlan::kPartTokens, kPartWords = kPartTokens / 32;  // a block's
constexpr int kBatch = 8;  // numbers that a thread asks for before it looks at the first

// What the kernels share. A CTA's set is blockIdx.y, whose chunk c has its counts in
// counts[(set * chunks + c) * J ..].
struct Work {
  Inverse p;
  int* counts;
  int* finished;              // of every set, blocks of the scan that are done
  int end;                    // of the tokens
  int parts, chunks, window;  // parts of a chunk; blocks whose bits lie in shared memory at once
  int row;                    // numbers in a row of the table
  int pairs, stretch;

  __device__ bool left_out() const { return p.unless && p.unless[blockIdx.y / pairs]; }
  __device__ int* set_counts() const { return counts + static_cast<std::int64_t>(blockIdx.y) * chunks * p.J; }
  __device__ int* offsets() const { return p.offsets + static_cast<std::int64_t>(blockIdx.y) * (p.J + 1); }
  __device__ int first_entry() const { return static_cast<int>(blockIdx.y) * stretch * p.geometry.n; }
};

// Walks the parts of a chunk and the windows of blocks and sets the bits: of block j and token begin + t in
// bits[t / 32 * window + j - base]. Then calls each(begin, base, end, choices), j in [base, end), where
// choices(f) calls f(t, j, row, slot) for every valid number, in any order, by all threads. repeats[t], where wanted:
// the row of token begin + t has a number twice.
template <typename Each>
__device__ void for_bits(const Work& w, unsigned* bits, bool* repeats, Each&& each) {
  const Inverse& p = w.p;
  const int chunk = blockIdx.x, pair = blockIdx.y % w.pairs, b = pair / p.G, group = pair % p.G, n = p.geometry.n;
  const int first = p.begin + static_cast<int>(blockIdx.y) / w.pairs * w.stretch, last = min(first + w.stretch, w.end);
  const int step_t = kListThreads / n, step_slot = kListThreads % n;  // from one number of a thread to its next
  for (int part = 0; part < w.parts; ++part) {
    const int begin = first + (chunk * w.parts + part) * kPartTokens, count = min(kPartTokens, last - begin);
    if (count <= 0) break;
    const int* rows = p.blocks + (static_cast<std::int64_t>(b) * p.S + begin) * w.row + group * n;
    const Token newest(p, begin + count - 1);
    const int j_end = min(p.J, newest.first_block + newest.local / p.geometry.l_sel + 1);
    for (int base = Token(p, begin).first_block; base < j_end; base += w.window) {
      const int end = min(base + w.window, j_end);
#pragma unroll 1
      for (int j = threadIdx.x; j < end - base; j += kListThreads)
#pragma unroll
        for (int word = 0; word < kPartWords; ++word) bits[word * w.window + j] = 0;
      if (repeats && threadIdx.x < kPartTokens) repeats[threadIdx.x] = false;
      __syncthreads();
      const auto choices = [&](auto&& f) {
        int t = threadIdx.x / n, slot = threadIdx.x % n;
        for (int i = threadIdx.x; i < count * n; i += kBatch * kListThreads) {
          int tokens[kBatch], slots[kBatch], blocks[kBatch];
#pragma unroll
          for (int k = 0; k < kBatch; ++k) {
            const bool exists = i + k * kListThreads < count * n;
            const int number = exists ? __ldg(rows + t * w.row + slot) : -1;
            const Token token(p, exists ? begin + t : begin);
            const int j = token.first_block + number;
            tokens[k] = t, slots[k] = slot, blocks[k] = token.wants(p, number) && j >= base && j < end ? j : -1;
            t += step_t, slot += step_slot;
            if (slot >= n) slot -= n, ++t;
          }
#pragma unroll
          for (int k = 0; k < kBatch; ++k)
            if (blocks[k] >= 0) f(tokens[k], blocks[k], rows + tokens[k] * w.row, slots[k]);
        }
      };
      choices([&](int t, int j, const int*, int) {
        const unsigned bit = 1u << t % 32, before = atomicOr(&bits[t / 32 * w.window + j - base], bit);
        if (repeats && (before & bit)) repeats[t] = true;
      });
      __syncthreads();
      each(begin, base, end, choices);
      __syncthreads();
    }
  }
}

__global__ void __launch_bounds__(kListThreads, kListResident) count_kernel(const __grid_constant__ Work w) {
  extern __shared__ unsigned bits[];
  int* counts = w.set_counts() + static_cast<std::int64_t>(blockIdx.x) * w.p.J;
#pragma unroll 1
  for (int j = threadIdx.x; j < w.p.J; j += kListThreads) counts[j] = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) w.finished[blockIdx.y] = 0;
  if (w.left_out()) return;
  __syncthreads();
  for_bits(w, bits, nullptr, [&](int, int base, int end, auto&&) {
#pragma unroll 1
    for (int j = base + threadIdx.x; j < end; j += kListThreads) {
      int count = 0;
#pragma unroll
      for (int word = 0; word < kPartWords; ++word) count += __popc(bits[word * w.window + j - base]);
      counts[j] = w.parts > 1 ? counts[j] + count : count;
    }
  });
}

// 32 lists a block: lane j's warps share its chunks. Counts become the sums over the chunks before; the set's last
// block to finish turns the lists' lengths into offsets.
__global__ void __launch_bounds__(1024) scan_kernel(const __grid_constant__ Work w) {
  __shared__ int sums[32][33];
  __shared__ bool last;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, J = w.p.J, j = blockIdx.x * 32 + lane;
  const int share = (w.chunks + 31) / 32, begin = min(warp * share, w.chunks), end = min(begin + share, w.chunks);
  int *counts = w.set_counts() + j, *offsets = w.offsets();
  int sum = 0;
  if (j < J)
#pragma unroll 8
    for (int c = begin; c < end; ++c) sum += counts[static_cast<std::int64_t>(c) * J];
  sums[warp][lane] = sum;
  __syncthreads();
  int before = 0, length = 0;
  for (int k = 0; k < 32; ++k) {
    before += k < warp ? sums[k][lane] : 0;
    length += sums[k][lane];
  }
  if (j < J) {
#pragma unroll 8
    for (int c = begin; c < end; ++c) {
      int& place = counts[static_cast<std::int64_t>(c) * J];
      const int count = place;
      place = before;
      before += count;
    }
    if (warp == 0) offsets[j + 1] = length;
  }

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&w.finished[blockIdx.y], 1) == static_cast<int>(gridDim.x) - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  int carried = w.first_entry();
  if (threadIdx.x == 0) offsets[0] = carried;
  for (int first = 0; first < J; first += 4096) {  // four lists a thread
    int x[4], own = 0;
    const int at = first + static_cast<int>(threadIdx.x) * 4;
#pragma unroll
    for (int k = 0; k < 4; ++k) own += x[k] = at + k < J ? __ldcg(&offsets[at + k + 1]) : 0;
    int total;
    int place = carried + scan_block<1024>(own, sums[0], total);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (at + k < J) offsets[at + k + 1] = place += x[k];
    carried += total;
  }
}

__global__ void __launch_bounds__(kListThreads, kListResident) place_kernel(const __grid_constant__ Work w) {
  extern __shared__ unsigned bits[];
  // Of a block's list: the entry of the part's first token, and for every word of bits the count of the words before.
  int* entries = reinterpret_cast<int*>(bits + kPartWords * w.window);
  unsigned char* counts = reinterpret_cast<unsigned char*>(entries + w.window);
  int* sums = w.set_counts() + static_cast<std::int64_t>(blockIdx.x) * w.p.J;
  const int* offsets = w.offsets();
  __shared__ bool repeats[kPartTokens];
  if (w.left_out()) return;
  for_bits(w, bits, w.p.places ? repeats : nullptr, [&](int begin, int base, int end, auto&& choices) {
#pragma unroll 1
    for (int j = base + static_cast<int>(threadIdx.x); j < end; j += kListThreads) {
      const int sum = sums[j];
      entries[j - base] = offsets[j] + sum;
      int count = 0;
#pragma unroll
      for (int word = 0; word < kPartWords; ++word) {
        counts[word * w.window + j - base] = static_cast<unsigned char>(count);
        count += __popc(bits[word * w.window + j - base]);
      }
      if (w.parts > 1) sums[j] = sum + count;
    }
    __syncthreads();
    choices([&](int t, int j, const int* row, int slot) {
      const int at = t / 32 * w.window + j - base;
      const int entry = entries[j - base] + counts[at] + __popc(bits[at] & ((1u << t % 32) - 1));
      w.p.tokens[entry] = begin + t;
      if (w.p.places == nullptr) return;
      bool first = true;  // of the same numbers
      if (repeats[t]) {
#pragma unroll 1
        for (int i = 0; i < slot; ++i) first &= row[i] != row[slot];
      }
      if (first) w.p.places[entry] = slot;
    });
  });
}

}  // namespace

void invert_choice(const Inverse& p, cudaStream_t stream) {
  const InversePlan plan(p);
  const auto sets = static_cast<unsigned>(plan.sets);
  const int pairs = p.B * p.G;
  if (plan.launches == 0) {
    end_collecting();
    cudaMemsetAsync(p.offsets, 0, std::max<std::size_t>(sets, pairs) * (p.J + 1) * sizeof(int), stream);
    return check_launch("invert_choice");
  }
  const int end = p.begin + plan.tokens, row = (p.row_groups > 0 ? p.row_groups : p.G) * p.geometry.n;
  if (plan.small) {
    const int n = p.geometry.n;
    const SmallWork w{p, end, row, SmallWork::kThreads / n, SmallWork::kThreads % n, pairs, plan.stretch, plan.words};
    launch(false, small_lists_kernel, dim3(static_cast<unsigned>(plan.shares), sets), SmallWork::kThreads, w.bytes(),
           stream, w);
    return check_launch("invert_choice");
  }
  const Work w{p, p.workspace + sets, p.workspace, end, plan.parts, plan.chunks, plan.window, row, pairs, plan.stretch};
  const dim3 grid(w.chunks, sets);
  cudaFuncSetAttribute(count_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       InversePlan::kMostWindow * kPartWords * 4);
  cudaFuncSetAttribute(place_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       InversePlan::kMostWindow * (kPartWords * 5 + 4));
  launch(false, count_kernel, grid, kListThreads, w.window * kPartWords * 4, stream, w);
  launch(false, scan_kernel, dim3((p.J + 31) / 32, sets), 1024, 0, stream, w);
  launch(false, place_kernel, grid, kListThreads, w.window * (kPartWords * 5 + 4), stream, w);
  check_launch("invert_choice");
}

}  // namespace nsa::kernels
