// The second launch: a block's score over the heads (Eq 10), once a block: from here on it is 4 bytes instead of 64.
#pragma once

#include "nsa/kernels/decode/tile.cuh"
#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/score.cuh"

namespace nsa::kernels {

inline constexpr int kDecodeQuads = kDecodeThreads / 4;

// Of each head what all tiles' weights are counted from, and their sum; what a thread looks at is loaded once, of up to
// 8192 compressed keys. By all threads together.
struct HeadSums {
  static constexpr int kLanes = kDecodeThreads / kDecodeHeads, kKept = 4;
  int count, head = static_cast<int>(threadIdx.x) % kDecodeHeads, lane = static_cast<int>(threadIdx.x) / kDecodeHeads;
  const float2* from;  // this thread's first
  float2 kept[kKept];

  __device__ HeadSums(const float2* stats, int tiles) : count(tiles), from(stats + lane * kDecodeHeads + head) {}
  __device__ void load(int first) {
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int i = first + k * kLanes;
      kept[k] = i + lane < count ? from[i * kDecodeHeads] : make_float2(-INFINITY, 0);
    }
  }
  static constexpr int kRound = kKept * kLanes;
  [[nodiscard]] __device__ float highest_kept() const {
    return fmaxf(fmaxf(kept[0].x, kept[1].x), fmaxf(kept[2].x, kept[3].x));
  }
  // From the first tile on that is not kept.
  __device__ float highest_beyond() {
    float own = -INFINITY;
#pragma unroll 1
    for (int first = kRound; first < count; first += kRound) {
      load(first);
      own = fmaxf(own, highest_kept());
    }
    return own;
  }
  // Both of heads 4 * quarter and the next three. The first tiles are loaded; `beyond`: highest_beyond().
  __device__ void reduce(float beyond, float (*maxima)[kDecodeHeads], float (*sums)[kDecodeHeads], float4& origin,
                         float4& sum) {
    const int warp = static_cast<int>(threadIdx.x) / 32, quarter = static_cast<int>(threadIdx.x) % 4;
    float own = fmaxf(beyond, highest_kept());
    own = fmaxf(own, __shfl_xor_sync(0xffffffffu, own, 16));  // a warp has each head twice
    if (lane % 2 == 0) maxima[warp][head] = own;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) own = fmaxf(own, maxima[w][head]);
    origin = of_four(maxima, quarter, [](float a, float b) { return fmaxf(a, b); });
    float total = 0;
    const auto add_kept = [&] {
#pragma unroll
      for (int k = 0; k < kKept; ++k) total = fmaf(whole_power(kept[k].x - own), kept[k].y, total);
    };
    if (count > kRound) load(0);
    add_kept();
#pragma unroll 1
    for (int first = kRound; first < count; first += kRound) {
      load(first);
      add_kept();
    }
    total += __shfl_xor_sync(0xffffffffu, total, 16);
    if (lane % 2 == 0) sums[warp][head] = total;
    __syncthreads();
    sum = of_four(sums, quarter, [](float a, float b) { return a + b; });
  }

 private:
  template <typename Join>
  __device__ static float4 of_four(const float (*rows)[kDecodeHeads], int quarter, Join&& join) {
    float4 all = reinterpret_cast<const float4*>(rows[0])[quarter];
#pragma unroll
    for (int w = 1; w < kDecodeWarps; ++w) {
      const float4 x = reinterpret_cast<const float4*>(rows[w])[quarter];
      all = make_float4(join(all.x, x.x), join(all.y, x.y), join(all.z, x.z), join(all.w, x.w));
    }
    return all;
  }
};

__device__ inline float4 as_floats(const uint4& x) {
  const auto one = [](unsigned bits) { return __int_as_float(static_cast<int>(bits)); };
  return make_float4(one(x.x), one(x.y), one(x.z), one(x.w));
}

// A tile's numbers of four heads: from what its weights are counted.
struct FourOrigins {
  float4 low, high;  // (origin, sum) of two heads each
  __device__ explicit FourOrigins(const float2* stats) {
    const uint4* const from = reinterpret_cast<const uint4*>(stats);
    low = as_floats(load_now(from)), high = as_floats(load_now(from + 1));
  }
  __device__ float4 powers(const float4& origin) const {
    return make_float4(whole_power(low.x - origin.x), whole_power(low.z - origin.y), whole_power(high.x - origin.z),
                       whole_power(high.z - origin.w));
  }
};

// Grid: (64 blocks each, G, B): four lanes a block, a quarter of the heads each.
__global__ void __launch_bounds__(kDecodeThreads)
    decode_totals_kernel(const __grid_constant__ Decode p, const __grid_constant__ DecodeCuts cuts,
                         const __grid_constant__ DecodeWork work) {
  __shared__ __align__(16) float maxima[kDecodeWarps][kDecodeHeads];
  __shared__ __align__(16) float sums[kDecodeWarps][kDecodeHeads];
  griddepcontrol_launch_dependents();
  const int pair = static_cast<int>(blockIdx.z) * p.G + static_cast<int>(blockIdx.y), heads = cuts.heads;
  const int quarter = static_cast<int>(threadIdx.x) % 4, last = cuts.current - 2;
  const int block = 1 + static_cast<int>(blockIdx.x) * kDecodeQuads + static_cast<int>(threadIdx.x) / 4;
  const int own = min(block, last), tile = own / cuts.tile_blocks, place = own - tile * cuts.tile_blocks;
  const bool edge = place == 0 && tile > 0;
  const float2* const stats = work.stats_of(cuts, pair);
  const float4* row =
      reinterpret_cast<const float4*>(work.scores + score_row(cuts, pair * cuts.compressed + tile, place)) + quarter;
  const float2* own_stats = stats + tile * kDecodeHeads + quarter * 4;
  int* const to = work.totals_of(cuts, pair) + block;
  HeadSums all(stats, cuts.compressed);
  prefetch_line(row), prefetch_line(own_stats),
      prefetch_line(all.from);  // so that addresses are computed before the wait
  griddepcontrol_wait();

  const float beyond = all.highest_beyond();
  // Everything else is asked for at once: without a loop between, over which it would be put off.
  all.load(0);
  const uint4 own_score = load_now(reinterpret_cast<const uint4*>(row));
  const FourOrigins origins(own_stats);
  const int back = edge ? 1 : 0;  // where the tile before gives something; elsewhere it is not used
  const uint4 edge_score = load_now(reinterpret_cast<const uint4*>(row - back * (kDecodeHeads / 4)));
  const FourOrigins origins_before(own_stats - back * kDecodeHeads);
  const float4 score = as_floats(own_score), score_before = as_floats(edge_score);
  float4 origin, sum;
  all.reduce(beyond, maxima, sums, origin, sum);
  const float4 power = origins.powers(origin);
  float4 share = make_float4(score.x * power.x, score.y * power.y, score.z * power.z, score.w * power.w);
  if (edge) {
    const float4 before = origins_before.powers(origin);
    share.x = fmaf(score_before.x, before.x, share.x), share.y = fmaf(score_before.y, before.y, share.y);
    share.z = fmaf(score_before.z, before.z, share.z), share.w = fmaf(score_before.w, before.w, share.w);
  }
  const int first = quarter * 4;  // of this thread's heads
  float total = 0;
  if (first < heads) total = share.x * (1.f / sum.x);
  if (first + 1 < heads) total = fmaf(share.y, 1.f / sum.y, total);
  if (first + 2 < heads) total = fmaf(share.z, 1.f / sum.z, total);
  if (first + 3 < heads) total = fmaf(share.w, 1.f / sum.w, total);
  total = quad_sum(total);
  if (quarter == 0 && block <= last) *to = score_bits(total);
}

}  // namespace nsa::kernels
