// The third launch: the parts of each branch together, and the gated sum; a CTA a head.
#pragma once

#include "nsa/kernels/decode/tile.cuh"
#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/gates.cuh"

namespace nsa::kernels {

// The weights of a head's parts [first, end) against each other, over the sum of all: by one warp. `stats` [part][16].
__device__ inline void weigh_branch(float* table, const float2* stats, int first, int end) {
  const int begin = first + (static_cast<int>(threadIdx.x) & 31);
  // What a lane looks at is loaded once, of up to 64 parts.
  constexpr int kKept = 2, kRest = kKept * 32;
  float2 kept[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = begin + k * 32;
    kept[k] = i < end ? stats[i * kDecodeHeads] : make_float2(-INFINITY, 0);
  }
  float origin = fmaxf(kept[0].x, kept[1].x), sum = 0;
#pragma unroll 1
  for (int i = begin + kRest; i < end; i += 32) origin = fmaxf(origin, stats[i * kDecodeHeads].x);
  origin = warp_max(origin);
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (begin + k * 32 < end) sum = fmaf(whole_power(kept[k].x - origin), kept[k].y, sum);
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
    if (begin + k * 32 < end) table[begin + k * 32] = whole_power(kept[k].x - origin) * inverse;
#pragma unroll 1
  for (int i = begin + kRest; i < end; i += 32) table[i] = whole_power(stats[i * kDecodeHeads].x - origin) * inverse;
}

template <typename T>
__device__ inline void store_four(const Rows& rows, int b, int head, int column, const float4& x) {
  T* const to = static_cast<T*>(rows.data) + b * rows.batch + head * rows.head + column;
  *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(x.x, x.y), pack<T>(x.z, x.w));
}
__device__ inline void add_weighted(float4& sum, float weight, const float4& x) {
  sum.x = fmaf(weight, x.x, sum.x), sum.y = fmaf(weight, x.y, sum.y);
  sum.z = fmaf(weight, x.z, sum.z), sum.w = fmaf(weight, x.w, sum.w);
}

// Grid: (heads of a group, G, B). Threads that share four columns share the parts.
template <typename T, int Dv>
__global__ void __launch_bounds__(kDecodeThreads)
    decode_join_kernel(const __grid_constant__ Decode p, const __grid_constant__ DecodeCuts cuts,
                       const __grid_constant__ DecodeWork work) {
  constexpr int kColumns = Dv / 4, kLanes = kDecodeThreads / kColumns, kAhead = 8;
  extern __shared__ __align__(128) char shared[];  // [parts] floats
  __shared__ float4 sums[kBranches][kDecodeThreads];
  float* const table = reinterpret_cast<float*>(shared);
  const int head = static_cast<int>(blockIdx.x), group = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, pair = b * p.G + group, heads = p.Hq / p.G;
  const int column = thread % kColumns, lane = thread / kColumns, parts = cuts.parts();
  const int ends[kBranches] = {cuts.compressed, parts, cuts.compressed + cuts.window};  // cmp, sel, win
  float gates[kBranches];
#pragma unroll
  for (int i = 0; i < kBranches; ++i) {
    const int place = pair * kBranches + i;
    gates[i] = p.gates_fp32 ? static_cast<const float*>(p.gates)[place] : wide(static_cast<const T*>(p.gates)[place]);
  }
  griddepcontrol_wait();

  // Asked for before the weights are known.
  const float* const o = work.o_of(p, cuts, pair) + static_cast<std::int64_t>(head) * Dv + column * 4;
  const std::int64_t row = static_cast<std::int64_t>(heads) * Dv;
  const auto load = [&](int part) { return *reinterpret_cast<const float4*>(o + part * row); };
  float4 ahead[kAhead];
  const auto load_from = [&](int first) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) ahead[k] = load(min(first + lane + k * kLanes, parts - 1));
  };
  load_from(0);
  const float2* const stats = work.stats_of(cuts, pair) + head;
  if (warp < kBranches) {  // compressed, selected, window
    const int first = warp == 0 ? 0 : warp == 1 ? ends[2] : ends[0];
    weigh_branch(table, stats, first, warp == 0 ? ends[0] : warp == 1 ? ends[1] : ends[2]);
  }
  __syncthreads();

  float4 sum[kBranches] = {};
  const auto add = [&](int part, const float4& x) {
    const float weight = table[part];
    if (part < ends[0])
      add_weighted(sum[0], weight, x);
    else if (part < ends[2])
      add_weighted(sum[2], weight, x);
    else
      add_weighted(sum[1], weight, x);
  };
#pragma unroll 1
  for (int first = 0;;) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (first + lane + k * kLanes < parts) add(first + lane + k * kLanes, ahead[k]);
    first += kAhead * kLanes;
    if (first >= parts) break;
    load_from(first);
  }
#pragma unroll
  for (int i = 0; i < kBranches; ++i) sums[i][thread] = sum[i];
  __syncthreads();
  if (lane > 0) return;
  float4 gated = make_float4(0, 0, 0, 0);
  const int place = group * heads + head;
#pragma unroll
  for (int i = 0; i < kBranches; ++i) {
    float4 branch = sums[i][column];
#pragma unroll
    for (int k = 1; k < kLanes; ++k) add_weighted(branch, 1, sums[i][k * kColumns + column]);
    if (p.branch[i].data) store_four<T>(p.branch[i], b, place, column * 4, branch);
    add_weighted(gated, gates[i], branch);
  }
  store_four<T>(p.o, b, place, column * 4, gated);
}

}  // namespace nsa::kernels
