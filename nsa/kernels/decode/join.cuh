// The third launch: the parts of each branch together, and the gated sum; a CTA a head.
#pragma once

#include "nsa/kernels/decode/tile.cuh"
#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/gates.cuh"

namespace nsa::kernels {

// The weights of a head's parts [first, end) against each other, over the sum of all: by one warp. `stats` [part][16].
struct BranchWeights {
  static constexpr int kKept = 2, kRest = kKept * 32;  // what a lane looks at is loaded once, of up to 64 parts
  const float2* stats;
  int begin, end;
  float2 kept[kKept];

  __device__ BranchWeights(const float2* all, int first, int last, int parts)
      : stats(all), begin(first + (static_cast<int>(threadIdx.x) & 31)), end(last) {
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int i = begin + k * 32;
      kept[k] = load_now(stats + min(i, parts - 1) * kDecodeHeads);
      if (i >= end) kept[k] = make_float2(-INFINITY, 0);
    }
  }
  __device__ void weigh(float* table) const {
    float origin = fmaxf(kept[0].x, kept[1].x);
#pragma unroll 1
    for (int i = begin + kRest; i < end; i += 32) origin = fmaxf(origin, stats[i * kDecodeHeads].x);
    origin = warp_max(origin);
    float power[kKept], sum = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) power[k] = whole_power(kept[k].x - origin), sum = fmaf(power[k], kept[k].y, sum);
#pragma unroll 1
    for (int i = begin + kRest; i < end; i += 32) {
      const float2 part = stats[i * kDecodeHeads];
      sum = fmaf(whole_power(part.x - origin), part.y, sum);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    const float inverse = 1.f / sum;
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (begin + k * 32 < end) table[begin + k * 32] = power[k] * inverse;
#pragma unroll 1
    for (int i = begin + kRest; i < end; i += 32) table[i] = whole_power(stats[i * kDecodeHeads].x - origin) * inverse;
  }
};

template <typename T>
__device__ inline void store_four(const Rows& rows, int b, int head, int column, const float4& x) {
  T* const to = static_cast<T*>(rows.data) + b * rows.batch + head * rows.head + column;
  *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(x.x, x.y), pack<T>(x.z, x.w));
}
__device__ inline void add_weighted(float4& sum, float weight, const float4& x) {
  sum.x = fmaf(weight, x.x, sum.x), sum.y = fmaf(weight, x.y, sum.y);
  sum.z = fmaf(weight, x.z, sum.z), sum.w = fmaf(weight, x.w, sum.w);
}

// Grid: (heads of a group, G, B). Threads that share four columns share the parts: half of them have the compressed
// branch's, a quarter each the selected one's and the window's.
template <typename T, int Dv>
__global__ void __launch_bounds__(kDecodeThreads)
    decode_join_kernel(const __grid_constant__ Decode p, const __grid_constant__ DecodeCuts cuts,
                       const __grid_constant__ DecodeWork work) {
  constexpr int kColumns = Dv / 4, kLanes = kDecodeThreads / kColumns, kAhead = 8;
  static_assert(kLanes % 4 == 0);
  extern __shared__ __align__(128) char shared[];  // [parts] floats
  __shared__ float4 sums[kDecodeThreads];
  float* const table = reinterpret_cast<float*>(shared);
  const int head = static_cast<int>(blockIdx.x), group = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, pair = b * p.G + group, heads = cuts.heads;
  const int column = thread % kColumns, lane = thread / kColumns, parts = cuts.parts();
  const int window_end = cuts.compressed + cuts.window;
  const int begins[kBranches + 1] = {0, window_end, cuts.compressed},
                               ends[kBranches] = {cuts.compressed, parts, window_end};
  const auto pick = [](const int* of, int branch) { return branch == 0 ? of[0] : branch == 1 ? of[1] : of[2]; };
  float gates[kBranches];
#pragma unroll
  for (int i = 0; i < kBranches; ++i) {
    const int place = pair * kBranches + i;
    gates[i] = p.gates_fp32 ? static_cast<const float*>(p.gates)[place] : wide(static_cast<const T*>(p.gates)[place]);
  }
  // The branch of this lane, and which of its lanes it is.
  const int branch = lane < kLanes / 2       ? 0
                     : lane < kLanes * 3 / 4 ? 1
                                             : 2,
            shares = branch == 0 ? kLanes / 2 : kLanes / 4;
  const int end = pick(ends, branch);
  int part = pick(begins, branch) + lane - (branch == 0 ? 0 : branch == 1 ? kLanes / 2 : kLanes * 3 / 4);
  const std::int64_t row = static_cast<std::int64_t>(heads) * Dv, step = row * shares;  // floats
  const float* o =
      work.o_of(p, cuts, pair) + static_cast<std::int64_t>(head) * Dv + column * 4 + min(part, parts - 1) * row;
  const float2* stats = work.stats_of(cuts, pair) + head;
  prefetch_line(o), prefetch_line(stats);  // so that addresses are computed before the wait
  griddepcontrol_wait();

  // A warp each; everything is asked for before the weights are known.
  const BranchWeights weights(stats, pick(begins, warp), warp < kBranches ? pick(ends, warp) : 0, parts);
  float4 ahead[kAhead];
  const auto load = [&] {
#pragma unroll
    for (int k = 0; k < kAhead; ++k, o += step)
      if (part + k * shares < end) ahead[k] = *reinterpret_cast<const float4*>(o);
  };
  load();
  if (warp < kBranches) weights.weigh(table);
  __syncthreads();

  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
  while (part < end) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (part + k * shares < end) add_weighted(sum, table[part + k * shares], ahead[k]);
    part += kAhead * shares;
    if (part < end) load();
  }
  sums[thread] = sum;
  __syncthreads();
  if (lane > 0) return;
  float4 gated = make_float4(0, 0, 0, 0);
  const int place = group * heads + head;
#pragma unroll
  for (int i = 0; i < kBranches; ++i) {
    const int first = i == 0   ? 0
                      : i == 1 ? kLanes / 2
                               : kLanes * 3 / 4,
              end_lane = i == 0 ? kLanes / 2 : first + kLanes / 4;
    float4 branch = sums[first * kColumns + column];
#pragma unroll
    for (int k = first + 1; k < end_lane; ++k) add_weighted(branch, 1, sums[k * kColumns + column]);
    if (p.branch[i].data) store_four<T>(p.branch[i], b, place, column * 4, branch);
    add_weighted(gated, gates[i], branch);
  }
  store_four<T>(p.o, b, place, column * 4, gated);
}

}  // namespace nsa::kernels
