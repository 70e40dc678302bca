// dK and dV of a tile of 64 keys: the queries that see them pass by.
//
//   CTA of 4 warps: 64 keys, 16 a warp; rows (token, head) in tiles of 64 (32 where Dk is 192)
//   shared memory: K, V; two stages of Q, dO, and of what a row needs besides (statistics, delta, interval)
//   a warp, everything transposed: S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q
//
// Intervals: the queries of a tile of keys are neighbours. Selected: they come from the block's query list. In both
// cases a long row of queries is cut into `pieces`, each with a CTA of its own, whose fp32 results sum_pieces_kernel
// adds in order.
#pragma once

#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/pieces.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"

namespace nsa::kernels {

template <int Dk, int Dv>
struct DkvShape {
  static constexpr int kThreads = 128, kKeys = kKeyTile, kKeyTiles = 1, kRows = Dk > 128 ? 32 : 64;
  static constexpr int kKBytes = kKeys * Dk * 2, kVBytes = kKeys * Dv * 2;
  static constexpr int kQBytes = kRows * Dk * 2, kOBytes = kRows * Dv * 2;
  static constexpr int kSharedBytes = kKBytes + kVBytes + 2 * (kQBytes + kOBytes);
};

template <typename T, int Dk, int Dv, bool Lists>
__global__ void __launch_bounds__(128)
    attention_dkv_kernel(const AttentionBackward p, const QueryLists lists, const Pieces pieces, float* partials) {
  if constexpr (kLeftToHopper<Dk>) return __trap();
  using Shape = DkvShape<Dk, Dv>;
  constexpr int kRows = Shape::kRows, kTiles = kRows / 8;
  extern __shared__ __align__(128) char shared[];
  __shared__ __align__(16) float2 row_softmax[2][kRows];  // origin, normaliser
  __shared__ __align__(16) float row_delta[2][kRows];
  __shared__ __align__(16) int2 row_interval[2][kRows];
  const AttentionForward& f = p.forward;
  const Heads heads(f.Hq / f.G);
  const int b = blockIdx.z / f.G, group = blockIdx.z % f.G;
  const KeyTile keys = Lists ? list_tile(lists, f, pieces, heads, blockIdx.x, blockIdx.y, blockIdx.z)
                             : interval_tile(f, pieces, heads, blockIdx.x, blockIdx.y, blockIdx.z, kRows);
  if (keys.first >= keys.last || static_cast<int>(blockIdx.x) >= keys.pieces) return;
  const int* list =
      Lists ? lists.tokens + *lists.offset(blockIdx.z, blockIdx.y / pieces.tiles_a_block, f.selection.J) : nullptr;
  const auto token_of = [&](int row) { return Lists ? list[heads.token(row)] : heads.token(row); };
  const auto head_of = [&](int row) { return group * heads.h + row - heads.token(row) * heads.h; };

  const std::uint32_t k_tile = shared_address(shared), v_tile = k_tile + Shape::kKBytes;
  const auto q_tile = [&](int stage) { return v_tile + Shape::kVBytes + stage * (Shape::kQBytes + Shape::kOBytes); };
  const auto o_tile = [&](int stage) { return q_tile(stage) + Shape::kQBytes; };

  const auto key_of = [&](const Rows& x) {
    const T* data = static_cast<const T*>(x.data) + b * x.batch + group * x.head;
    return [=, &keys](int i) -> const T* {
      return keys.first + i < keys.last ? data + (keys.first + i) * x.token : nullptr;
    };
  };
  Tile<Dk>::template load<Shape::kKeys, Shape::kThreads>(k_tile, f.k.data, key_of(f.k));
  Tile<Dv>::template load<Shape::kKeys, Shape::kThreads>(v_tile, f.v.data, key_of(f.v));

  const Interval interval(f);
  const int tiles = max(0, (keys.row_end - keys.row_begin + kRows - 1) / kRows);
  const auto load_rows = [&](int tile) {
    if (tile < tiles) {
      const int first = keys.row_begin + tile * kRows, stage = tile % 2;
      const auto row_of = [&](const Rows& x) {
        const T* data = static_cast<const T*>(x.data) + b * x.batch;
        return [=, &keys](int i) -> const T* {
          const int row = first + i;
          return row < keys.row_end ? data + token_of(row) * x.token + head_of(row) * x.head : nullptr;
        };
      };
      Tile<Dk>::template load<kRows, Shape::kThreads>(q_tile(stage), f.q.data, row_of(f.q));
      Tile<Dv>::template load<kRows, Shape::kThreads>(o_tile(stage), p.dout.data, row_of(p.dout));
      if (threadIdx.x < kRows) {
        const int row = first + static_cast<int>(threadIdx.x);
        float2 softmax = {0.f, 0.f};  // rows beyond the end: weight 0, no mask needed
        float delta = 0;
        int2 seen = {0, 0x7fffffff};
        if (row < keys.row_end) {
          const int t = token_of(row);
          const std::int64_t at = (static_cast<std::int64_t>(b) * f.Hq + head_of(row)) * f.S + t;
          const float2 stats = reinterpret_cast<const float2*>(f.stats)[at];
          softmax = {stats.y == 0.f ? 0.f : stats.x, normaliser(stats.y)};
          delta = p.delta[at];
          seen = Lists ? make_int2(0, t + 1) : make_int2(interval.begin(t), interval.end(t));
        }
        row_softmax[stage][threadIdx.x] = softmax;
        row_delta[stage][threadIdx.x] = delta;
        row_interval[stage][threadIdx.x] = seen;
      }
    }
    cp_async_commit();
  };
  load_rows(0);
  load_rows(1);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int own_key = keys.first + warp * 16 + lane / 4;
  const float factor = f.scale * kLog2E;
  float dk[Dk / 8][4] = {}, dv[Dv / 8][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<1>();
    __syncthreads();
    const int stage = tile % 2;
    const std::uint32_t q_now = q_tile(stage), o_now = o_tile(stage);

    float s[kTiles][4] = {}, dp[kTiles][4] = {};
    std::uint32_t a[4], fragment[4];
#pragma unroll
    for (int kk = 0; kk < Dk / 16; ++kk) {
      Tile<Dk>::a(a, k_tile, warp * 16, kk);
#pragma unroll
      for (int n = 0; n < kRows / 16; ++n) {
        Tile<Dk>::b(fragment, q_now, n * 16, kk);
        mma<T>(s[2 * n], a, fragment[0], fragment[1]);
        mma<T>(s[2 * n + 1], a, fragment[2], fragment[3]);
      }
    }
#pragma unroll
    for (int kk = 0; kk < Dv / 16; ++kk) {
      Tile<Dv>::a(a, v_tile, warp * 16, kk);
#pragma unroll
      for (int n = 0; n < kRows / 16; ++n) {
        Tile<Dv>::b(fragment, o_now, n * 16, kk);
        mma<T>(dp[2 * n], a, fragment[0], fragment[1]);
        mma<T>(dp[2 * n + 1], a, fragment[2], fragment[3]);
      }
    }
    // Both ends of the rows' intervals rise along the tile: its first and last row tell whether all see all keys.
    const int last_row = min(kRows, keys.row_end - keys.row_begin - tile * kRows) - 1;
    const bool masked = keys.first < row_interval[stage][last_row].x || keys.last > row_interval[stage][0].y;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      const float4 softmax = *reinterpret_cast<const float4*>(&row_softmax[stage][column]);
      const float2 delta = *reinterpret_cast<const float2*>(&row_delta[stage][column]);
      const int4 seen = masked ? *reinterpret_cast<const int4*>(&row_interval[stage][column])
                               : make_int4(0, 0x7fffffff, 0, 0x7fffffff);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = own_key + i / 2 * 8;
        const bool visible = i % 2 ? key >= seen.z && key < seen.w : key >= seen.x && key < seen.y;
        const float weight =
            exp2_fast(fmaf(s[n][i], factor, i % 2 ? -softmax.z : -softmax.x)) * (i % 2 ? softmax.w : softmax.y);
        s[n][i] = visible ? weight : 0.f;
        dp[n][i] = visible ? weight * (dp[n][i] - (i % 2 ? delta.y : delta.x)) : 0.f;
      }
    }
#pragma unroll
    for (int kk = 0; kk < kRows / 16; ++kk) {
      as_a<T>(a, s, kk);
#pragma unroll
      for (int n = 0; n < Dv / 16; ++n) {
        Tile<Dv>::b_transposed(fragment, o_now, kk * 16, n);
        mma<T>(dv[2 * n], a, fragment[0], fragment[1]);
        mma<T>(dv[2 * n + 1], a, fragment[2], fragment[3]);
      }
      as_a<T>(a, dp, kk);
#pragma unroll
      for (int n = 0; n < Dk / 16; ++n) {
        Tile<Dk>::b_transposed(fragment, q_now, kk * 16, n);
        mma<T>(dk[2 * n], a, fragment[0], fragment[1]);
        mma<T>(dk[2 * n + 1], a, fragment[2], fragment[3]);
      }
    }
    __syncthreads();
    load_rows(tile + 2);
  }
  cp_async_wait<0>();

  store_keys<T, Dk, Dv>(p, keys, b, group, own_key, dk, dv, partials);
}

}  // namespace nsa::kernels
