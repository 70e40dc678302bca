// dQ over intervals of keys (compressed, window) by wgmma; what interval/sm80_dq.cuh does.
//
//   CTA of one warpgroup with 64 rows (token, head), two or three per SM, or, where shared memory has no
//   room for two (Dk 192), of two warpgroups; keys in tiles of 64 for all of them
//   S = Q K^T and dP = dO V^T from shared memory; dQ += dS K with dS in registers
//
// A tile's K is wanted a step longer than its V, by the sum. So of two stages the one that the last tile leaves is free
// in the middle of a step, after a barrier of its own; of three one is free when the step begins. (One warpgroup with
// three stages: no faster.)
#pragma once

#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/device/heads.cuh"
#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/interval.cuh"
#include "nsa/kernels/device/rows.cuh"
#include "nsa/kernels/device/slab.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"

namespace nsa::kernels::hopper {

template <int Dk, int Dv>
struct DqShape {
  static constexpr int kWarpgroups = Dk > 128 ? 2 : 1, kThreads = kWarpgroups * 128;
  static constexpr int kCtasPerSm = Dk > 128 ? 1 : Dk > 64 ? 2 : 3;  // per SM, as the registers allow
  static constexpr int kRows = kWarpgroups * 64, kKeys = 64, kKStages = kWarpgroups + 1, kVStages = 2;
  using Q = Slab<kRows, Dk>;
  using O = Slab<kRows, Dv>;
  using K = Slab<kKeys, Dk>;
  using V = Slab<kKeys, Dv>;
  static constexpr int kSharedBytes =
      1024 + Q::kBytes + O::kBytes + kKStages * K::kBytes + kVStages * V::kBytes;  // 1024: to align
};

template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(DqShape<Dk, Dv>::kThreads, DqShape<Dk, Dv>::kCtasPerSm)
    dq_kernel(const AttentionBackward p) {
#if NSA_ON_HOPPER
  using Shape = DqShape<Dk, Dv>;
  constexpr int kKeys = Shape::kKeys, kTiles = kKeys / 8;
  extern __shared__ char shared[];
  const AttentionForward& f = p.forward;
  const std::uint32_t start = shared_address(shared), q_tile = (start + 1023) & ~1023u;
  const std::uint32_t o_tile = q_tile + Shape::Q::kBytes;
  const std::uint32_t k_tiles = o_tile + Shape::O::kBytes, v_tiles = k_tiles + Shape::kKStages * Shape::K::kBytes;
  const auto k_tile = [&](int tile) { return k_tiles + tile % Shape::kKStages * Shape::K::kBytes; };
  const auto v_tile = [&](int tile) { return v_tiles + tile % Shape::kVStages * Shape::V::kBytes; };

  const Heads heads(f.Hq / f.G);
  const Interval interval(f);
  const int b = blockIdx.y / f.G, group = blockIdx.y % f.G;
  const int rows = f.S * heads.h;
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::kRows;  // the longest intervals first
  const int last_row = min(first_row + Shape::kRows, rows) - 1;
  const int first_t = heads.token(first_row), last_t = heads.token(last_row);
  const int begin = interval.begin(first_t), end = interval.end(last_t);
  const int open_begin = interval.begin(last_t), open_end = interval.end(first_t);

  __shared__ int q_offset[Shape::kRows], o_offset[Shape::kRows];
  if (threadIdx.x < Shape::kRows) {
    const Row row = RowOrder{heads, nullptr, nullptr, 0, rows}.row(first_row + static_cast<int>(threadIdx.x));
    q_offset[threadIdx.x] = offset_of(row, static_cast<int>(f.q.token / 8), static_cast<int>(f.q.head / 8));
    o_offset[threadIdx.x] = offset_of(row, static_cast<int>(p.dout.token / 8), static_cast<int>(p.dout.head / 8));
  }
  __syncthreads();
  Shape::Q::template gather<Shape::kThreads>(q_tile, group_rows<T>(f.q, b, group, heads.h), q_offset);
  Shape::O::template gather<Shape::kThreads>(o_tile, group_rows<T>(p.dout, b, group, heads.h), o_offset);

  const T* k = static_cast<const T*>(f.k.data) + b * f.k.batch + group * f.k.head;
  const T* v = static_cast<const T*>(f.v.data) + b * f.v.batch + group * f.v.head;
  const int tiles = (end - begin + kKeys - 1) / kKeys;
  const auto load_keys = [&](int tile) {
    if (tile < tiles) {
      const int first = begin + tile * kKeys;
      Shape::K::template load<Shape::kThreads>(k_tile(tile), k, static_cast<int>(f.k.token), first, end);
      Shape::V::template load<Shape::kThreads>(v_tile(tile), v, static_cast<int>(f.v.token), first, end);
    }
    cp_async_commit();
  };
  load_keys(0);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t own_rows = uniform(static_cast<int>(threadIdx.x) / 128) * 64 * 128;  // in a tile of rows
  int row_begin[2], row_end[2];
  float origin[2], inverse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(first_row + warp * 16 + lane / 4 + 8 * half, rows - 1), t = heads.token(row);
    row_begin[half] = interval.begin(t);
    row_end[half] = interval.end(t);
    const std::int64_t at = (static_cast<std::int64_t>(b) * f.Hq + group * heads.h + heads.head(row, t)) * f.S + t;
    const float2 stats = reinterpret_cast<const float2*>(f.stats)[at];
    origin[half] = stats.y == 0.f ? 0.f : stats.x;
    inverse[half] = normaliser(stats.y);
    delta[half] = p.delta[at];
  }

  const float factor = f.scale * kLog2E;
  float dq[Dk / 8][4] = {}, s[kTiles][4], dp[kTiles][4];
  std::uint32_t gradients[kKeys / 16][4];  // dS of one tile
  // As in Note [Scores ahead] (sm90_dkv.cuh), dP too: here the registers suffice.
  const auto start_scores = [&](int tile) {
    product_of_columns<T, Dk / 16>(s, typename Shape::Q(), q_tile + own_rows, typename Shape::K(), k_tile(tile));
    wgmma_commit();
    product_of_columns<T, Dv / 16>(dp, typename Shape::O(), o_tile + own_rows, typename Shape::V(), v_tile(tile));
    wgmma_commit();
  };
  const auto start_sum = [&](int tile) {
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk) Wgmma<T, Dk>::values(dq, gradients[kk], Shape::K::rows(k_tile(tile), kk));
    wgmma_commit();
  };
  // From S and dP, which are on their way, to dS.
  const auto weigh = [&](int tile) {
    const int first = begin + tile * kKeys;
    wgmma_wait<1>();
    pin(s);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = exp2_fast(fmaf(s[n][i], factor, -origin[i / 2]));
        if constexpr (!kNormalisesLate<T>) s[n][i] *= inverse[i / 2];
      }
    wgmma_wait<0>();
    pin(dp);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= dp[n][i] - delta[i / 2];
    if (first < open_begin || first + kKeys > open_end) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first + n * 8 + lane % 4 * 2 + i % 2;
          if (key < row_begin[i / 2] || key >= row_end[i / 2]) s[n][i] = 0.f;
        }
    }
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk) as_a<T>(gradients[kk], s, kk);
  };
  if (tiles > 0) {
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads();
    load_keys(1);
    pin(s);
    pin(dp);
    wgmma_fence();
    start_scores(0);
    weigh(0);
  }
  for (int tile = 1; tile < tiles; ++tile) {
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads();  // this tile's keys are there; of the last one nobody wants V any more
    pin(dq);
    pin(s);
    pin(dp);
    wgmma_fence();
    start_sum(tile - 1);
    start_scores(tile);
    if constexpr (Shape::kKStages > 2) load_keys(tile + 1);
    wgmma_wait<2>();
    pin(dq);
    if constexpr (Shape::kKStages == 2) {
      __syncthreads();  // the last tile's K is used up
      load_keys(tile + 1);
    }
    weigh(tile);
  }
  if (tiles > 0) {
    pin(dq);
    wgmma_fence();
    start_sum(tiles - 1);
    wgmma_wait<0>();
    pin(dq);
  }
  cp_async_wait<0>();
  __syncthreads();

  char* staging = shared + (q_tile - start);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float scale = kNormalisesLate<T> ? f.scale * inverse[half] : f.scale;
#pragma unroll
    for (int n = 0; n < Dk / 8; ++n)
      *reinterpret_cast<std::uint32_t*>(staging + (Shape::Q::at(q_tile, warp * 16 + lane / 4 + 8 * half, n) - q_tile) +
                                        lane % 4 * 4) = pack<T>(dq[n][2 * half] * scale, dq[n][2 * half + 1] * scale);
  }
  __syncwarp();
  T* out = static_cast<T*>(p.dq.data) + b * p.dq.batch;
  for (int place = lane; place < 16 * (Dk / 8); place += 32) {
    const int i = warp * 16 + place / (Dk / 8), chunk = place % (Dk / 8), row = first_row + i, t = heads.token(row);
    if (row >= rows) continue;
    auto* const to =
        reinterpret_cast<uint4*>(out + t * p.dq.token + (group * heads.h + heads.head(row, t)) * p.dq.head + chunk * 8);
    const uint4 own = *reinterpret_cast<const uint4*>(staging + (Shape::Q::at(q_tile, i, chunk) - q_tile));
    *to = p.adds_dq ? added<T>(own, *to) : own;
  }
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
