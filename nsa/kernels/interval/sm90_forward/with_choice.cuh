// The compressed branch and the choice of blocks in one kernel on Hopper, for up to 128 compressed keys of width 64:
// what forward.cuh and select/sm90.cuh do, of finite inputs to the bit.
//
//   CTA: one warpgroup with 64 rows (token, head) of whole tokens, one tile of all keys that they see; three CTAs an SM
//   S = Q K^T ─> softmax ─> o = P V and the rows' statistics, as forward.cuh has them for its only step
//   S once more ─> P from the statistics ─> shared memory, where Q and K were; a warp a token, a lane a block:
//   sums over the heads, scores (Eq 9), and how many blocks are better
//
// Apart, either kernel waits for one tile of keys, one tile of rows after the other. Here nothing is kept from tile to
// tile: while one CTA waits, two others work. The scores are computed twice, because a row's weights and probabilities
// do not fit the registers together, and the tensor cores have time.
#pragma once

#include <cuda.h>

#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/interval.cuh"
#include "nsa/kernels/device/score.cuh"
#include "nsa/kernels/device/slab.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"

namespace nsa::kernels::hopper {

struct WithChoice {
  static constexpr int D = 64, kKeys = 128, kHalf = kKeys / 2, kThreads = 128, kCtas = 3;
  static constexpr int kBlocks = kKeys / 4;  // a lane's: four keys begin in a block
  static_assert(kBlocks == 32);
  using Keys = Slab<kKeys, D>;
  using Queries = Slab<64, D>;
  // Floats a row of probabilities: four rows of a store fall into all banks.
  static constexpr int kPitch = kKeys + 8;

  // Shared memory: V, and behind it Q and K, where the probabilities come later.
  static constexpr int kQ = Keys::kBytes, kK = kQ + Queries::kBytes, kProbabilities = kQ;
  static constexpr int kBarriers = kProbabilities + 64 * kPitch * 4;
  static_assert(kK + Keys::kBytes <= kBarriers);
  static constexpr int kAlignment = 1024, kSharedBytes = kBarriers + 2 * 8 + kAlignment;
  static_assert(kCtas * (kSharedBytes + 1024) <= 228 * 1024);
};

// What the host finds out, so that no thread divides by h or d. A launch has a CTA for each group, batch entry and tile
// of tokens.
struct WithChoiceWork {
  AttentionForward p;
  int* blocks;
  Heads heads;
  Interval interval;
  int tokens, tiles;  // tokens of a tile; tiles of a pair (batch entry, group)

  __host__ WithChoiceWork(const AttentionForward& problem, int* chosen)
      : p(problem),
        blocks(chosen),
        heads(p.Hq / p.G),
        interval(p),
        tokens(64 / heads.h),
        tiles((p.S - 1) / tokens + 1) {}
  __device__ int group() const { return blockIdx.x; }
  __device__ int entry() const { return blockIdx.y; }
  // The last tokens see most keys: they go first.
  __device__ int first_token() const { return (tiles - 1 - static_cast<int>(blockIdx.z)) * tokens; }
  __device__ int last_token() const { return min(first_token() + tokens, p.S) - 1; }
  struct Row {
    int t, head;  // of the sequence, of the model
    bool exists;
  };
  // Of the tile's 64.
  __device__ Row row(int number) const {
    const int token = heads.token(number), t = first_token() + token;
    return {t, group() * heads.h + heads.head(number, token), token < tokens && t < p.S};
  }
};

// The token's row of the table, by a warp. `own`: the token's block, which with the one before and the first is always
// chosen; of the others the n - 3 with the best scores, a lane's `bits` being its block's (score_bits(); ties go to the
// lower one).
__device__ inline void choose(int* row, int n, int own, int bits) {
  const int lane = threadIdx.x & 31, last = own - 2;
  if (own < n) {
    for (int i = lane; i < n; i += 32) row[i] = i <= own ? i : -1;
    return;
  }
  int better = 0;
#pragma unroll 4
  for (int block = 1; block <= last; ++block) {
    const int other = __shfl_sync(0xffffffffu, bits, block);
    better += other > bits || (other == bits && block < lane);
  }
  const bool chosen = lane >= 1 && lane <= last && better < n - 3;
  const unsigned all = __ballot_sync(0xffffffffu, chosen);
  if (chosen) row[1 + __popc(all & ((1u << lane) - 1))] = lane;
  if (lane == 0) row[0] = 0;
  if (lane < 2) row[n - 2 + lane] = own - 1 + lane;
}

// A tile of which no row sees more than the first `Keys` keys.
template <typename T, int Keys>
__device__ inline void forward_and_select(const WithChoiceWork& work, char* places, const CUtensorMap& k_map,
                                          const CUtensorMap& v_map) {
  using S = WithChoice;
  using KeySlab = Slab<Keys, S::D>;
  constexpr int kN = Keys / 8, kSteps = Keys / 16;
  const AttentionForward& p = work.p;
  const std::uint32_t base = shared_address(places), k_full = base + S::kBarriers, v_full = k_full + 8;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x & 31;
  const int k = uniform(base + S::kK), v = uniform(base), q = uniform(base + S::kQ);

  if (threadIdx.x == 0) {
    mbarrier_init(k_full, 1);
    mbarrier_init(v_full, 1);
    fence_mbarrier_init();
    const auto load = [&](std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier) {
      mbarrier_arrive_expect_tx(barrier, KeySlab::kBytes);
      for (int first = 0; first < Keys; first += S::kHalf)
        tma_load(to + first * S::D * 2, &map, first, work.group(), work.entry(), barrier);
    };
    load(base + S::kK, k_map, k_full);
    load(base, v_map, v_full);
  }
  const T* const from = static_cast<const T*>(p.q.data) + work.entry() * p.q.batch + lane % 8 * 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int number = warp * 4 + lane / 8 + i * 16;
    const auto x = work.row(number);
    cp_async(S::Queries::at(q, number, lane % 8), x.exists ? from + x.t * p.q.token + x.head * p.q.head : from,
             x.exists);
  }
  cp_async_commit();
  cp_async_wait<0>();
  fence_proxy_async();
  __syncthreads();

  float s[kN][4];
  const auto multiply = [&] {
    pin(s);
    wgmma_fence();
    product_of_columns<T, S::D / 16>(s, S::Queries(), q, KeySlab(), k);
    wgmma_commit();
    wgmma_wait<0>();
    pin(s);
  };
  mbarrier_wait(k_full, 0);
  multiply();

  // This thread's rows are g, g + 8 of its warp's 16.
  const float factor = p.scale * kLog2E;
  const auto own_row = [&](int half) { return work.row(warp * 16 + lane / 4 + half * 8); };
  unsigned sees = 0;  // bit i: row i sees any key
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto x = own_row(half);
    const int visible = x.exists ? work.interval.end(x.t) : 0;
    sees |= (visible > 0) << half;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (8 * n + i >= visible - lane % 4 * 2) s[n][2 * half + i] = -INFINITY;
  }
  RunningSoftmax softmax;
  float rescale[2], o[S::D / 8][4];
  softmax.update_in_chains<T>(s, factor, rescale);
  std::uint32_t weights[kSteps][4];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) as_a<T>(weights[i], s, i);
  mbarrier_wait(v_full, 0);
  pin(o);
  wgmma_fence();
  Wgmma<T, S::D>::template values<0>(o, weights[0], KeySlab::rows(v, 0));
#pragma unroll
  for (int i = 1; i < kSteps; ++i) Wgmma<T, S::D>::values(o, weights[i], KeySlab::rows(v, i));
  wgmma_commit();
  wgmma_wait<0>();
  pin(o);
  float offset[2];  // of a row's exponents: they become probabilities
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto x = own_row(half);
    const float total = total_of(softmax.quad_total<T>(half, factor), sees >> half & 1);
    T* const out = static_cast<T*>(p.o.data) + work.entry() * p.o.batch + x.t * p.o.token + x.head * p.o.head;
    store_row(x.exists ? out : nullptr, o, half, normaliser(total), total == 0.f);
    const float2 stats = stored_statistics(softmax.maximum[half], total, factor);
    if (x.exists && lane % 4 == 0)
      reinterpret_cast<float2*>(p.stats)[(static_cast<std::int64_t>(work.entry()) * p.Hq + x.head) * p.S + x.t] = stats;
    offset[half] = stats.y == 0 ? -INFINITY : -(stats.x + log2f(stats.y));
  }

  const int n = p.geometry.n, l_sel = p.geometry.l_sel;
  // By score a token chooses among the blocks up to the second before its own: the keys of those, for the last token.
  const int current = work.last_token() / l_sel;
  const int keys = current >= n && n > 3 ? (current - 1) * 4 : 0;
  float* const probabilities = reinterpret_cast<float*>(places + S::kProbabilities);
  if (keys > 0) {
    multiply();
    __syncthreads();  // Q and K have been read
    float* const place = probabilities + (warp * 16 + lane / 4) * S::kPitch + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kN; ++i)
      if (8 * i < keys)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(place + half * 8 * S::kPitch + 8 * i) =
              make_float2(exp2_fast(fmaf(s[i][2 * half], factor, offset[half])),
                          exp2_fast(fmaf(s[i][2 * half + 1], factor, offset[half])));
    __syncthreads();
  }
  const int first = work.first_token();
#pragma unroll 1
  for (int t = first + warp; t <= work.last_token(); t += 4) {
    int bits = -1;
    const int block = t / l_sel;
    if (block >= n && n > 3) {
      float4 sum = make_float4(0, 0, 0, 0);
      if (lane * 4 < keys) {
        const float* row = probabilities + (t - first) * work.heads.h * S::kPitch + lane * 4;
        for (int head = 0; head < work.heads.h; ++head, row += S::kPitch) {
          const float4 x = *reinterpret_cast<const float4*>(row);
          sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
      }
      // Eq 9: keys 4j-1 .. 4j+3 of block j, weights 1,2,2,2,1.
      const float neighbour = __shfl_sync(0xffffffffu, sum.w, (lane + 31) % 32);
      bits = score_bits(fmaf(2, sum.x + sum.y + sum.z, (lane == 0 ? 0.f : neighbour) + sum.w));
    }
    const std::int64_t row = (static_cast<std::int64_t>(work.entry()) * p.S + t) * p.G + work.group();
    choose(work.blocks + row * n, n, block, bits);
  }
}

template <typename T>
__global__ void __launch_bounds__(WithChoice::kThreads, WithChoice::kCtas)
    forward_and_select_kernel(const __grid_constant__ WithChoiceWork work, const __grid_constant__ CUtensorMap k,
                              const __grid_constant__ CUtensorMap v) {
#if NSA_ON_HOPPER
  using S = WithChoice;
  extern __shared__ char shared[];
  const std::uint32_t before = shared_address(shared);
  char* const places = shared + ((before + S::kAlignment - 1) / S::kAlignment * S::kAlignment - before);
  if (work.interval.end(work.last_token()) <= S::kHalf)
    forward_and_select<T, S::kHalf>(work, places, k, v);
  else
    forward_and_select<T, S::kKeys>(work, places, k, v);
#else
  __trap();  // never launched: plans say so only where the device has wgmma
#endif
}

}  // namespace nsa::kernels::hopper
