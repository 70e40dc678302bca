// What the kernels over intervals share whose rows stay while keys pass by: which rows (token, head) and which keys a
// CTA has, and, of dQ's kernels, what a thread's rows are and how dQ leaves.
#pragma once

#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/device/heads.cuh"
#include "nsa/kernels/device/interval.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"

namespace nsa::kernels {

// A CTA's rows, neighbours of one batch entry's group, and the keys that they see in tiles of `Keys`.
// Grid: (tiles of rows, B*G).
template <int Rows, int Keys>
struct RowTile {
  Heads heads;
  Interval interval;
  int b, group;
  int rows, first_row;       // all of the group; the tile's first
  int begin, end;            // keys that any of its rows sees
  int open_begin, open_end;  // within these every row sees every key

  // The calling thread's. No constructor: nvcc would take what it reads of the members for memory, and repeat the
  // branches of Interval.
  __device__ static RowTile of_cta(const AttentionForward& p) {
    const Heads heads(p.Hq / p.G);
    const Interval interval(p);
    const int b = blockIdx.y / p.G, group = blockIdx.y % p.G, rows = p.S * heads.h;
    const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Rows;  // the longest intervals first
    const int last_row = min(first_row + Rows, rows) - 1;
    const int first_t = heads.token(first_row), last_t = heads.token(last_row);
    const int begin = interval.begin(first_t), end = interval.end(last_t);
    const int open_begin = interval.begin(last_t), open_end = interval.end(first_t);
    return {heads, interval, b, group, rows, first_row, begin, end, open_begin, open_end};
  }
  __device__ int key_tiles() const { return (end - begin + Keys - 1) / Keys; }
  __device__ int first_key(int tile) const { return begin + tile * Keys; }
  // Every row sees the tile of keys from `first` on.
  __device__ bool all_see(int first) const { return first >= open_begin && first + Keys <= open_end; }
  __device__ int head(int row, int t) const { return group * heads.h + heads.head(row, t); }  // of all
};

// What dQ's kernels need of the rows g and g + 8 of a warp's 16, which a thread has.
struct DqRows {
  int begin[2], end[2];  // of the keys that they see
  float origin[2], inverse[2], delta[2];

  template <int Rows, int Keys>
  __device__ DqRows(const AttentionBackward& p, const RowTile<Rows, Keys>& tile) {
    const AttentionForward& f = p.forward;
    const int own_row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(tile.first_row + own_row + 8 * half, tile.rows - 1), t = tile.heads.token(row);
      begin[half] = tile.interval.begin(t);
      end[half] = tile.interval.end(t);
      const std::int64_t at = (static_cast<std::int64_t>(tile.b) * f.Hq + tile.head(row, t)) * f.S + t;
      const float2 stats = reinterpret_cast<const float2*>(f.stats)[at];
      origin[half] = stats.y == 0.f ? 0.f : stats.x;
      inverse[half] = normaliser(stats.y);
      delta[half] = p.delta[at];
    }
  }
};

// dQ of a warp's 16 rows, times `scale`, through shared memory: `staging` is a tile laid out as Layout, of which the
// warp uses its own rows alone.
template <typename T, typename Layout, int Rows, int Keys, int N>
__device__ inline void store_dq(const AttentionBackward& p, const RowTile<Rows, Keys>& tile, char* staging,
                                const float (&dq)[N][4], const float (&scale)[2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto staged = [&](int row, int chunk) { return staging + Layout::at(0, row, chunk); };
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int n = 0; n < N; ++n)
      *reinterpret_cast<std::uint32_t*>(staged(warp * 16 + lane / 4 + 8 * half, n) + lane % 4 * 4) =
          pack<T>(dq[n][2 * half] * scale[half], dq[n][2 * half + 1] * scale[half]);
  __syncwarp();
  for (int place = lane; place < 16 * N; place += 32) {
    const int i = warp * 16 + place / N, chunk = place % N, row = tile.first_row + i, t = tile.heads.token(row);
    if (row >= tile.rows) continue;
    uint4* const to = chunk_of<T>(p.dq, tile.b, t, tile.head(row, t), chunk);
    const uint4 own = *reinterpret_cast<const uint4*>(staged(i, chunk));
    *to = p.adds_dq ? added<T>(own, *to) : own;
  }
}

}  // namespace nsa::kernels
