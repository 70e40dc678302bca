// dQ over intervals of keys (compressed, window).
//
//   CTA of 4 warps: 64 rows (token, head), 16 a warp; keys in tiles of 64 (32 where Dk is 192)
//   shared memory: Q [64][Dk], dO [64][Dv], two stages of K and V
//   a warp: S = Q K^T, dP = dO V^T, dS = P (dP - delta), dQ += dS K
#pragma once

#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/device/heads.cuh"
#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/interval.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"

namespace nsa::kernels {

template <int Dk, int Dv>
struct DqShape {
  static constexpr int kThreads = 128, kRows = 64, kKeys = Dk > 128 ? 32 : 64;
  static constexpr int kQBytes = kRows * Dk * 2, kOBytes = kRows * Dv * 2;
  static constexpr int kKBytes = kKeys * Dk * 2, kVBytes = kKeys * Dv * 2;
  static constexpr int kSharedBytes = kQBytes + kOBytes + 2 * (kKBytes + kVBytes);
};

template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(128) attention_dq_kernel(const AttentionBackward p) {
  if constexpr (kLeftToHopper<Dk>) return __trap();
  using Shape = DqShape<Dk, Dv>;
  constexpr int kKeys = Shape::kKeys, kTiles = kKeys / 8;
  extern __shared__ __align__(128) char shared[];
  const AttentionForward& f = p.forward;
  const std::uint32_t q_tile = shared_address(shared), o_tile = q_tile + Shape::kQBytes;
  const auto k_tile = [&](int stage) { return o_tile + Shape::kOBytes + stage * (Shape::kKBytes + Shape::kVBytes); };
  const auto v_tile = [&](int stage) { return k_tile(stage) + Shape::kKBytes; };

  const Heads heads(f.Hq / f.G);
  const Interval interval(f);
  const int b = blockIdx.y / f.G, group = blockIdx.y % f.G;
  const int rows = f.S * heads.h;
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::kRows;
  const int last_row = min(first_row + Shape::kRows, rows) - 1;
  const int first_t = heads.token(first_row), last_t = heads.token(last_row);
  const int begin = interval.begin(first_t), end = interval.end(last_t);
  const int open_begin = interval.begin(last_t), open_end = interval.end(first_t);

  const auto row_of = [&](const Rows& x) {
    const T* data = static_cast<const T*>(x.data) + b * x.batch;
    return [=, &heads](int i) -> const T* {
      const int row = first_row + i, t = heads.token(row);
      return row < rows ? data + t * x.token + (group * heads.h + heads.head(row, t)) * x.head : nullptr;
    };
  };
  Tile<Dk>::template load<Shape::kRows, Shape::kThreads>(q_tile, f.q.data, row_of(f.q));
  Tile<Dv>::template load<Shape::kRows, Shape::kThreads>(o_tile, p.dout.data, row_of(p.dout));

  const T* k = static_cast<const T*>(f.k.data) + b * f.k.batch + group * f.k.head;
  const T* v = static_cast<const T*>(f.v.data) + b * f.v.batch + group * f.v.head;
  const int tiles = (end - begin + kKeys - 1) / kKeys;
  const auto load_keys = [&](int tile) {
    if (tile < tiles) {
      const int first = begin + tile * kKeys;
      const auto key_of = [&](const T* data, std::int64_t stride) {
        return [=](int i) -> const T* { return first + i < end ? data + (first + i) * stride : nullptr; };
      };
      Tile<Dk>::template load<kKeys, Shape::kThreads>(k_tile(tile % 2), f.k.data, key_of(k, f.k.token));
      Tile<Dv>::template load<kKeys, Shape::kThreads>(v_tile(tile % 2), f.v.data, key_of(v, f.v.token));
    }
    cp_async_commit();
  };
  load_keys(0);
  load_keys(1);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
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
  float dq[Dk / 8][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<1>();
    __syncthreads();
    const std::uint32_t k_now = k_tile(tile % 2), v_now = v_tile(tile % 2);
    const int first = begin + tile * kKeys;

    float s[kTiles][4] = {}, dp[kTiles][4] = {};
    std::uint32_t a[4], fragment[4];
#pragma unroll
    for (int kk = 0; kk < Dk / 16; ++kk) {
      Tile<Dk>::a(a, q_tile, warp * 16, kk);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        Tile<Dk>::b(fragment, k_now, n * 16, kk);
        mma<T>(s[2 * n], a, fragment[0], fragment[1]);
        mma<T>(s[2 * n + 1], a, fragment[2], fragment[3]);
      }
    }
#pragma unroll
    for (int kk = 0; kk < Dv / 16; ++kk) {
      Tile<Dv>::a(a, o_tile, warp * 16, kk);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        Tile<Dv>::b(fragment, v_now, n * 16, kk);
        mma<T>(dp[2 * n], a, fragment[0], fragment[1]);
        mma<T>(dp[2 * n + 1], a, fragment[2], fragment[3]);
      }
    }
    const bool masked = first < open_begin || first + kKeys > open_end;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first + n * 8 + lane % 4 * 2 + i % 2, half = i / 2;
        const bool seen = !masked || (key >= row_begin[half] && key < row_end[half]);
        const float weight = exp2_fast(fmaf(s[n][i], factor, -origin[half])) * inverse[half];
        s[n][i] = seen ? weight * (dp[n][i] - delta[half]) : 0.f;
      }
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk) {
      as_a<T>(a, s, kk);
#pragma unroll
      for (int n = 0; n < Dk / 16; ++n) {
        Tile<Dk>::b_transposed(fragment, k_now, kk * 16, n);
        mma<T>(dq[2 * n], a, fragment[0], fragment[1]);
        mma<T>(dq[2 * n + 1], a, fragment[2], fragment[3]);
      }
    }
    __syncthreads();
    load_keys(tile + 2);
  }
  cp_async_wait<0>();
  __syncthreads();

#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int n = 0; n < Dk / 8; ++n)
      *reinterpret_cast<std::uint32_t*>(shared + (Tile<Dk>::at(q_tile, warp * 16 + lane / 4 + 8 * half, n) - q_tile) +
                                        lane % 4 * 4) =
          pack<T>(dq[n][2 * half] * f.scale, dq[n][2 * half + 1] * f.scale);
  __syncwarp();
  T* out = static_cast<T*>(p.dq.data) + b * p.dq.batch;
  for (int place = lane; place < 16 * (Dk / 8); place += 32) {
    const int i = warp * 16 + place / (Dk / 8), chunk = place % (Dk / 8), row = first_row + i, t = heads.token(row);
    if (row >= rows) continue;
    auto* const to =
        reinterpret_cast<uint4*>(out + t * p.dq.token + (group * heads.h + heads.head(row, t)) * p.dq.head + chunk * 8);
    const uint4 own = *reinterpret_cast<const uint4*>(shared + (Tile<Dk>::at(q_tile, i, chunk) - q_tile));
    *to = p.adds_dq ? added<T>(own, *to) : own;
  }
}

}  // namespace nsa::kernels
