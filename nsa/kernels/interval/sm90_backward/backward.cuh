// The whole backward pass over intervals of keys (compressed, window) on Hopper: five products a tile of 64 rows and
// 128 keys, where sm90_dq.cuh and sm90_dkv.cuh need seven. One CTA per SM.
//
//   consumer warpgroups: two, of 64 keys each, with their dK and dV in registers; S^T = K Q^T, dP^T = V dO^T;
//     dV += P^T dO with P^T in registers; dS^T goes to shared memory, where dK += dS^T Q reads what the warpgroup
//     itself wrote, and dQ = dS K, of which each warpgroup computes half of the columns, all of it
//   producer warps:
//     0 draws items, has TMA load K and V, and waits for turns (Note [Turns], work.cuh), if all keys are not one tile
//     1 hands dQ over
//     2 has TMA load Q, dO and what describe_rows_kernel wrote of them
//     3 says what is to be done with a tile
#pragma once

#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/rows.cuh"
#include "nsa/kernels/interval/sm90_backward/consumers.cuh"
#include "nsa/kernels/interval/sm90_backward/producers.cuh"

namespace nsa::kernels::hopper {

// Grid: (tiles of rows, pairs); a thread a row.
__global__ void __launch_bounds__(IntervalRows::kRows)
    describe_rows_kernel(const AttentionBackward p, const IntervalBackwardPlan plan) {
  const AttentionForward& f = p.forward;
  const Heads heads(f.Hq / f.G);
  const Interval interval(f);
  const int tile = static_cast<int>(blockIdx.x), pair = static_cast<int>(blockIdx.y), own = threadIdx.x;
  const int entry = heads.token(own), b = pair / f.G, group = pair - b * f.G;
  Row row;
  row.head = heads.head(own, entry);
  row.token = entry < plan.tokens && tile * plan.tokens + entry < f.S ? tile * plan.tokens + entry : -1;
  const RowStatistics statistics = RowStatistics::load(f, p.delta, row, b, group, heads.h);
  IntervalRows& rows = plan.rows[static_cast<std::int64_t>(pair) * plan.row_tiles + tile];
  rows.softmax[own] = statistics.origin_and_normaliser();
  rows.delta[own] = statistics.delta;
  rows.end[own] = row.token < 0 ? -1 : interval.end(row.token);
}

// Of `q`, `dout` and `dq` a box is one slab of a tile's rows. Adds: AttentionBackward::adds_dq.
template <typename T, typename S, bool Adds>
__global__ void __launch_bounds__(S::kThreads, 1)
    interval_backward_kernel(const __grid_constant__ AttentionBackward p,
                             const __grid_constant__ IntervalBackwardPlan plan, const __grid_constant__ CUtensorMap q,
                             const __grid_constant__ CUtensorMap dout, const __grid_constant__ CUtensorMap dq,
                             const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v) {
#if NSA_ON_HOPPER
  extern __shared__ char tiles[];
  __shared__ IntervalBackwardShared<S> shared;
  const IntervalBackwardPlaces<S> places{(shared_address(tiles) + S::kAlignment - 1) / S::kAlignment * S::kAlignment};
  const IntervalBackwardWork<S> work(p.forward, plan);
  if (threadIdx.x == 0) places.start_barriers();
  // Rows that no box fills are zeros for good.
  if (plan.tokens * work.heads.h < S::kRows)
    for (int at = S::kQ + static_cast<int>(threadIdx.x) * 16; at < S::kDs; at += S::kThreads * 16)
      cp_async(places.base + at, p.dout.data, false);
  cp_async_commit();
  cp_async_wait<0>();
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec<S::kProducerRegisters>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (threadIdx.x == 0) produce_items<S>(work, places, shared, k, v);
    if (warp == 1) hand_over_sums<S, Adds>(work, places, shared, dq);
    if (warp == 2) produce_rows<S>(work, places, shared, q, dout);
    if (warp == 3) describe_tiles<S>(work, places, shared);
  } else {
    setmaxnreg_inc<S::kConsumerRegisters>();
    const char* const descriptions = tiles + (places.description(0) - shared_address(tiles));
    IntervalConsumer<T, S>(p, work, places, shared, reinterpret_cast<const IntervalRows*>(descriptions)).run();
  }
#else
  __trap();  // never launched: Device::hopper is false where this is the code
#endif
}

// dK and dV of the tiles of keys whose chunks have left a sum each, added in their order. A CTA has 32
// columns. Grid: (2 * D / 32, tiles of keys, pairs).
template <typename T, typename S>
__global__ void __launch_bounds__(S::kConsumers)
    sum_chunks_kernel(const AttentionBackward p, const IntervalBackwardPlan plan) {
#if NSA_ON_HOPPER
  constexpr int kQuads = 4, kAtOnce = 8, kShares = S::D / 32;
  const IntervalBackwardWork<S> work(p.forward, plan);
  const int share = static_cast<int>(blockIdx.x), keys = static_cast<int>(blockIdx.y),
            pair = static_cast<int>(blockIdx.z);
  const int count = work.chunks_of(work.rows_of(keys)).count;
  if (count <= 1) return;  // written by whom has all
  float sum[kQuads][4] = {};
#pragma unroll 1
  for (int piece = 0; piece < count; piece += kAtOnce) {
    float4 more[kAtOnce][kQuads];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const float4* from = work.key_sums(pair, keys, min(piece + k, count - 1)) + share * kQuads * S::kConsumers;
#pragma unroll
      for (int n = 0; n < kQuads; ++n) more[k][n] = __ldcs(from + n * S::kConsumers + threadIdx.x);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (piece + k >= count) break;
#pragma unroll
      for (int n = 0; n < kQuads; ++n) {
        const float4 x = more[k][n];
        sum[n][0] += x.x, sum[n][1] += x.y, sum[n][2] += x.z, sum[n][3] += x.w;
      }
    }
  }
  const int b = pair / p.forward.G, group = pair - b * p.forward.G, lane = static_cast<int>(threadIdx.x) % 32;
  const Rows& out = share < kShares ? p.dk : p.dv;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = keys * S::kKeys + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + 8 * half;
    T* const row =
        static_cast<T*>(out.data) + b * out.batch + key * out.token + group * out.head + share % kShares * 32;
    store_row<T>(key < p.forward.N ? row : nullptr, sum, half, share < kShares ? p.forward.scale : 1.f, false);
  }
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
