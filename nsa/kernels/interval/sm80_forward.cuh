// Forward pass over intervals of keys (compressed, window).
//
//   CTA of 4 warps: 128 rows (token, head), 32 a warp; keys in tiles of 64
//   shared memory: Q [128][Dk], two stages of K [64][Dk] and V [64][Dv], filled by cp.async one tile ahead
//   registers: scores [32][64] and output [32][Dv] a warp
#pragma once

#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/interval/row_tile.cuh"

namespace nsa::kernels {

template <int Dk, int Dv>
struct ForwardShape {
  static constexpr int kWarps = 4, kThreads = 128, kRows = 128, kKeys = 64, kStages = 2;
  static constexpr int kQBytes = kRows * Dk * 2, kKBytes = kKeys * Dk * 2, kVBytes = kKeys * Dv * 2;
  static constexpr int kSharedBytes = kQBytes + kStages * (kKBytes + kVBytes);
};

template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(128) attention_forward_kernel(const AttentionForward p) {
  using Shape = ForwardShape<Dk, Dv>;
  constexpr int kKeys = Shape::kKeys, kTiles = kKeys / 8;
  extern __shared__ __align__(128) char shared[];
  const std::uint32_t q_tile = shared_address(shared);
  const auto k_tile = [&](int stage) { return q_tile + Shape::kQBytes + stage * (Shape::kKBytes + Shape::kVBytes); };
  const auto v_tile = [&](int stage) { return k_tile(stage) + Shape::kKBytes; };

  const auto work = RowTile<Shape::kRows, kKeys>::of_cta(p);
  const int b = work.b, group = work.group, tiles = work.key_tiles();

  const T* q = static_cast<const T*>(p.q.data) + b * p.q.batch;
  const T* k = static_cast<const T*>(p.k.data) + b * p.k.batch + group * p.k.head;
  const T* v = static_cast<const T*>(p.v.data) + b * p.v.batch + group * p.v.head;

  Tile<Dk>::template load<Shape::kRows, Shape::kThreads>(q_tile, p.q.data, [&](int i) -> const T* {
    const int row = work.first_row + i, t = work.heads.token(row);
    return row < work.rows ? q + t * p.q.token + work.head(row, t) * p.q.head : nullptr;
  });
  const auto load_keys = [&](int tile) {
    if (tile < tiles) {
      const int first = work.first_key(tile), end = work.end;
      const auto row_of = [&](const T* data, std::int64_t stride) {
        return [=](int i) -> const T* { return first + i < end ? data + (first + i) * stride : nullptr; };
      };
      Tile<Dk>::template load<kKeys, Shape::kThreads>(k_tile(tile % 2), p.k.data, row_of(k, p.k.token));
      Tile<Dv>::template load<kKeys, Shape::kThreads>(v_tile(tile % 2), p.v.data, row_of(v, p.v.token));
    }
    cp_async_commit();
  };
  load_keys(0);
  load_keys(1);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int own_row = warp * 32 + lane / 4;  // in the tile; the thread's rows are own_row + {0, 8, 16, 24}
  int row_begin[4], row_end[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = work.heads.token(min(work.first_row + own_row + 8 * i, work.rows - 1));
    row_begin[i] = work.interval.begin(t);
    row_end[i] = work.interval.end(t);
  }

  const float factor = p.scale * kLog2E;
  RunningSoftmax softmax[2];
  float o[2][Dv / 8][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<1>();
    __syncthreads();
    const int first = work.first_key(tile);

    float s[2][kTiles][4] = {};
#pragma unroll
    for (int kk = 0; kk < Dk / 16; ++kk) {
      std::uint32_t a[2][4], keys[4];
      Tile<Dk>::a(a[0], q_tile, warp * 32, kk);
      Tile<Dk>::a(a[1], q_tile, warp * 32 + 16, kk);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        Tile<Dk>::b(keys, k_tile(tile % 2), n * 16, kk);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<T>(s[m][2 * n], a[m], keys[0], keys[1]);
          mma<T>(s[m][2 * n + 1], a[m], keys[2], keys[3]);
        }
      }
    }
    if (!work.all_see(first)) {
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = first + n * 8 + lane % 4 * 2 + i % 2, row = 2 * m + i / 2;
            if (key < row_begin[row] || key >= row_end[row]) s[m][n][i] = -INFINITY;
          }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float rescale[2];
      softmax[m].update(s[m], factor, rescale);
#pragma unroll
      for (int n = 0; n < Dv / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][n][i] *= rescale[i / 2];
    }
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk) {
      std::uint32_t weights[2][4], values[4];
      as_a<T>(weights[0], s[0], kk);
      as_a<T>(weights[1], s[1], kk);
#pragma unroll
      for (int n = 0; n < Dv / 16; ++n) {
        Tile<Dv>::b_transposed(values, v_tile(tile % 2), kk * 16, n);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<T>(o[m][2 * n], weights[m], values[0], values[1]);
          mma<T>(o[m][2 * n + 1], weights[m], values[2], values[3]);
        }
      }
    }
    __syncthreads();
    load_keys(tile + 2);
  }
  cp_async_wait<0>();  // with no tile at all, Q may still be arriving
  __syncthreads();

#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = own_row + 16 * m + 8 * half, row = work.first_row + i;
      const bool sees_keys = row_begin[2 * m + half] < row_end[2 * m + half];
      const float total = total_of(quad_sum(softmax[m].sum[half]), sees_keys), factor_o = normaliser(total);
#pragma unroll
      for (int n = 0; n < Dv / 8; ++n)
        *reinterpret_cast<std::uint32_t*>(shared + (Tile<Dv>::at(q_tile, i, n) - q_tile) + lane % 4 * 4) =
            pack<T>(o[m][n][2 * half] * factor_o, o[m][n][2 * half + 1] * factor_o);
      if (row < work.rows && lane % 4 == 0) {
        const int t = work.heads.token(row);
        const std::int64_t at = (static_cast<std::int64_t>(b) * p.Hq + work.head(row, t)) * p.S + t;
        reinterpret_cast<float2*>(p.stats)[at] = stored_statistics(softmax[m].maximum[half], total, factor);
      }
    }
  __syncwarp();
  for (int place = lane; place < 32 * (Dv / 8); place += 32) {  // a warp stores its own rows
    const int i = warp * 32 + place / (Dv / 8), chunk = place % (Dv / 8), row = work.first_row + i;
    const int t = work.heads.token(row);
    if (row < work.rows)
      *chunk_of<T>(p.o, b, t, work.head(row, t), chunk) =
          *reinterpret_cast<const uint4*>(shared + (Tile<Dv>::at(q_tile, i, chunk) - q_tile));
  }
}

}  // namespace nsa::kernels
