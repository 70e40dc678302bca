// The rows (token, head) that pass by a tile of keys.
//
// Note [Rows ahead]
// A row's address hangs on its token, which for a list is itself in memory, and so do its statistics: two loads one
// after the other, each as long as a tile's products. So thread i owns row i of every tile and asks ahead: while tile t
// is computed, for the statistics of tile t+2, whose token it has, and for the token of tile t+3. Neither is waited for
// before the tile is done.
#pragma once

#include "nsa/kernels/device/pieces.cuh"
#include "nsa/kernels/device/softmax.cuh"

namespace nsa::kernels::hopper {

// Token and head (in the group) of a row; token -1: beyond the end.
struct Row {
  int token = -1, head = 0;
  int place = 0;  // lists with places
};

// Which rows: of one batch entry's group, in the order of a list of tokens, or all from token 0 on (a null list).
struct RowOrder {
  Heads heads;
  const int* tokens;
  const int* places;
  int begin, end;  // rows
  int first = 0;   // entry of row 0

  // -1: beyond the end. Without a branch, so that many are asked for one after the other; there are rows.
  __device__ int token(int i) const {
    const int entry = heads.token(min(i, end - 1)), found = tokens[first + entry];
    return i < end ? found : -1;
  }
  __device__ Row row(int i) const {
    Row x;
    if (i >= end) return x;
    const int entry = heads.token(i);
    x.head = heads.head(i, entry);
    x.token = tokens ? tokens[first + entry] : entry;
    if (places) x.place = places[first + entry];
    return x;
  }
};

// Where a row starts, counted in eights of elements from the group's first row; -1: beyond the end.
__device__ inline int offset_of(const Row& row, int token_stride, int head_stride) {
  return row.token < 0 ? -1 : row.token * token_stride + row.head * head_stride;
}
template <typename T>
__device__ const T* group_rows(const Rows& x, int b, int group, int h) {
  return static_cast<const T*>(x.data) + b * x.batch + static_cast<std::int64_t>(group) * h * x.head;
}

// What the backward pass needs of a row: weight = 2^(score - origin) * normaliser. 0, 0 for a row beyond the end, whose
// weights are then 0 without a mask.
struct RowStatistics {
  float2 softmax = {0.f, 0.f};  // origin, normaliser
  float delta = 0;

  __device__ static RowStatistics load(const AttentionForward& f, const float* deltas, const Row& row, int b, int group,
                                       int h) {
    RowStatistics x;
    if (row.token < 0) return x;
    const std::int64_t at = (static_cast<std::int64_t>(b) * f.Hq + group * h + row.head) * f.S + row.token;
    x.softmax = reinterpret_cast<const float2*>(f.stats)[at];
    x.delta = deltas[at];
    return x;
  }
  // Not in load(), so that nothing waits for what was asked.
  __device__ float2 origin_and_normaliser() const {
    return {softmax.y == 0.f ? 0.f : softmax.x, normaliser(softmax.y)};
  }
};

}  // namespace nsa::kernels::hopper
