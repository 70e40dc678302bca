// dQ over intervals of keys (compressed, window).
//
//   CTA of 4 warps: 64 rows (token, head), 16 a warp; keys in tiles of 64 (32 where Dk is 192)
//   shared memory: Q [64][Dk], dO [64][Dv], two stages of K and V
//   a warp: S = Q K^T, dP = dO V^T, dS = P (dP - delta), dQ += dS K
#pragma once

#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/interval/row_tile.cuh"

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

  const auto work = RowTile<Shape::kRows, kKeys>::of_cta(f);
  const int b = work.b, group = work.group, tiles = work.key_tiles();
  const auto row_of = [&](const Rows& x) {
    const T* data = static_cast<const T*>(x.data) + b * x.batch;
    return [=, &work](int i) -> const T* {
      const int row = work.first_row + i, t = work.heads.token(row);
      return row < work.rows ? data + t * x.token + work.head(row, t) * x.head : nullptr;
    };
  };
  Tile<Dk>::template load<Shape::kRows, Shape::kThreads>(q_tile, f.q.data, row_of(f.q));
  Tile<Dv>::template load<Shape::kRows, Shape::kThreads>(o_tile, p.dout.data, row_of(p.dout));

  const T* k = static_cast<const T*>(f.k.data) + b * f.k.batch + group * f.k.head;
  const T* v = static_cast<const T*>(f.v.data) + b * f.v.batch + group * f.v.head;
  const auto load_keys = [&](int tile) {
    if (tile < tiles) {
      const int first = work.first_key(tile), end = work.end;
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
  const DqRows own(p, work);
  const float factor = f.scale * kLog2E;
  float dq[Dk / 8][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<1>();
    __syncthreads();
    const std::uint32_t k_now = k_tile(tile % 2), v_now = v_tile(tile % 2);
    const int first = work.first_key(tile);

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
    const bool masked = !work.all_see(first);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first + n * 8 + lane % 4 * 2 + i % 2, half = i / 2;
        const bool seen = !masked || (key >= own.begin[half] && key < own.end[half]);
        const float weight = exp2_fast(fmaf(s[n][i], factor, -own.origin[half])) * own.inverse[half];
        s[n][i] = seen ? weight * (dp[n][i] - own.delta[half]) : 0.f;
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
  store_dq<T, Tile<Dk>>(p, work, shared, dq, {f.scale, f.scale});
}

}  // namespace nsa::kernels
