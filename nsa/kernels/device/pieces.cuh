// How the queries of a tile of 64 keys are dealt out, and how the parts of their sum come together again.
//
// Intervals: the queries of a tile of keys are neighbours. Selected: they come from the block's query list. In both
// cases a long row of queries is cut into `pieces`, each with a CTA of its own, whose fp32 results
// sum_pieces_kernel adds in order.
#pragma once

#include "nsa/kernels/device/heads.cuh"
#include "nsa/kernels/device/interval.cuh"
#include "nsa/kernels/device/mma.cuh"

namespace nsa::kernels {

inline constexpr int kKeyTile = 64;

// Query lists per block (selected/lists.hpp) of a table of blocks.
struct QueryLists {
  const int* offsets = nullptr;  // [B*G][J + 1]
  const int* tokens = nullptr;
  const int* places = nullptr;

  __device__ const int* offset(int pair, int block, int J) const { return offsets + pair * (J + 1) + block; }
};

// How the queries of a tile of keys are cut. Grid: (pieces, tiles of keys, B*G).
struct Pieces {
  int count = 1;          // at most, a tile of keys
  int tokens = 0;         // selected: a piece's tokens; intervals: 0, the rows are cut into `count` equal parts
  int tiles_a_block = 1;  // selected: tiles of keys a selection block
};

// The keys of one CTA, and where its results go.
struct KeyTile {
  int first, last;         // key rows
  int row_begin, row_end;  // rows (token, head) in list order
  int pieces;              // of this tile of keys; 1: the results are final
  int slot;                // of this piece's partial results
};

// The tile of keys `own` of those from `tile` on, of which `together` walk through the same rows.
__device__ inline KeyTile interval_tile(const AttentionForward& f, const Pieces& pieces, const Heads& heads, int piece,
                                        int tile, int batch_group, int rows_a_tile, int together = 1, int own = 0) {
  const Interval interval(f);
  KeyTile x;
  x.first = (tile + own) * kKeyTile;
  x.last = min(x.first + kKeyTile, f.N);
  const int begin = interval.first_query(tile * kKeyTile) * heads.h;
  const int end = interval.last_query(min((tile + together) * kKeyTile, f.N)) * heads.h;
  const int tiles = (max(end - begin, 0) + rows_a_tile - 1) / rows_a_tile;
  const int share = (tiles + pieces.count - 1) / pieces.count * rows_a_tile;
  x.row_begin = begin + piece * share;
  x.row_end = min(x.row_begin + share, end);
  x.pieces = pieces.count;
  x.slot = (batch_group * ((f.N + kKeyTile - 1) / kKeyTile) + tile + own) * pieces.count + piece;
  return x;
}

// The key rows of a tile of a selection block; none where first >= last.
__device__ inline KeyTile keys_of_tile(const AttentionForward& f, const Pieces& pieces, int tile) {
  const int block = tile / pieces.tiles_a_block, part = tile % pieces.tiles_a_block;
  const int first = f.selection.starts ? f.selection.starts[block] : block * f.geometry.l_sel;
  const int last = f.selection.ends ? f.selection.ends[block] : min(f.S, (block + 1) * f.geometry.l_sel);
  KeyTile x = {};
  x.first = first + part * kKeyTile;
  x.last = min(x.first + kKeyTile, last);
  return x;
}

// A long list's pieces get the places from floor(2 * offset / tokens) on: lists longer than a piece then never meet.
__device__ inline KeyTile list_tile(const QueryLists& lists, const AttentionForward& f, const Pieces& pieces,
                                    const Heads& heads, int piece, int tile, int batch_group) {
  const int block = tile / pieces.tiles_a_block, part = tile % pieces.tiles_a_block;
  const int* own = lists.offset(batch_group, block, f.selection.J);
  const int offset = own[0], count = own[1] - offset;
  KeyTile x = keys_of_tile(f, pieces, tile);
  x.pieces = max(1, (count + pieces.tokens - 1) / pieces.tokens);
  x.row_begin = min(piece * pieces.tokens, count) * heads.h;
  x.row_end = min((piece + 1) * pieces.tokens, count) * heads.h;
  x.slot =
      (static_cast<int>(2 * static_cast<std::int64_t>(offset) / pieces.tokens) + piece) * pieces.tiles_a_block + part;
  return x;
}

template <int Dk, int Dv>
inline constexpr int kPartial = kKeyTile*(Dk + Dv);  // floats of a piece

// What a thread holds of a piece's dK and dV: the rows own_key and own_key + 8 in m16n8k16's layout. To their place
// when the tile of keys was not cut, else to the piece's slot.
template <typename T, int Dk, int Dv>
__device__ inline void store_keys(const AttentionBackward& p, const KeyTile& keys, int b, int group, int own_key,
                                  const float (&dk)[Dk / 8][4], const float (&dv)[Dv / 8][4], float* partials) {
  const auto store = [&]<int D>(const Rows& x, const float(&c)[D / 8][4], float scale, float* partial) {
    if (!x.data && keys.pieces == 1) return;
    T* rows = static_cast<T*>(x.data) + b * x.batch + group * x.head;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = own_key + 8 * half;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float low = c[n][2 * half] * scale, high = c[n][2 * half + 1] * scale;
        const int column = n * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
        if (keys.pieces > 1)
          *reinterpret_cast<float2*>(partial + (key - keys.first) * D + column) = make_float2(low, high);
        else if (key < keys.last)
          *reinterpret_cast<std::uint32_t*>(rows + key * x.token + column) = pack<T>(low, high);
      }
    }
  };
  float* partial = partials + static_cast<std::int64_t>(keys.slot) * kPartial<Dk, Dv>;
  store.template operator()<Dk>(p.dk, dk, p.forward.scale, partial);
  store.template operator()<Dv>(p.dv, dv, 1.f, partial + kKeyTile * Dk);
}

// Adds the pieces of every tile of keys that was cut, in order. Grid: (shares of a tile, tiles of keys, B*G).
// Nothing but waits for memory costs time here: few tiles are divided among many CTAs, and pieces are asked for
// kAtOnce at a time.
inline constexpr int kSumThreads = 128;
template <typename T, int Dk, int Dv, bool Lists>
__global__ void __launch_bounds__(kSumThreads)
    sum_pieces_kernel(const AttentionBackward p, const QueryLists lists, const Pieces pieces, const float* partial) {
  constexpr int kAtOnce = 8, kQuads = (Dk + Dv) / 4;
  const AttentionForward& f = p.forward;
  const Heads heads(f.Hq / f.G);
  const int b = blockIdx.z / f.G, group = blockIdx.z % f.G;
  std::int64_t slot = (static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * pieces.count;
  int count = pieces.count, step = 1, first = static_cast<int>(blockIdx.y) * kKeyTile,
      last = min(first + kKeyTile, f.N);
  if (Lists) {
    const KeyTile keys = list_tile(lists, f, pieces, heads, 0, blockIdx.y, blockIdx.z);
    slot = keys.slot;
    count = keys.pieces;
    step = pieces.tiles_a_block;
    first = keys.first;
    last = keys.last;
  }
  if (count == 1) return;
  const int stride = step * kPartial<Dk, Dv>;
  for (int place = static_cast<int>(blockIdx.x) * kSumThreads + threadIdx.x; place < (last - first) * kQuads;
       place += static_cast<int>(gridDim.x) * kSumThreads) {
    const int key = place / kQuads, column = place % kQuads * 4;
    const bool is_k = column < Dk;
    const Rows& x = is_k ? p.dk : p.dv;
    if (!x.data) continue;
    const float* source =
        partial + slot * kPartial<Dk, Dv> + (is_k ? key * Dk + column : kKeyTile * Dk + key * Dv + column - Dk);
    float4 sum = {0, 0, 0, 0};
    for (int piece = 0; piece < count; piece += kAtOnce) {
      float4 parts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i, source += stride)
        if (piece + i < count) parts[i] = *reinterpret_cast<const float4*>(source);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (piece + i < count) sum = {sum.x + parts[i].x, sum.y + parts[i].y, sum.z + parts[i].z, sum.w + parts[i].w};
    }
    T* to = static_cast<T*>(x.data) + b * x.batch + (first + key) * x.token + group * x.head +
            (is_k ? column : column - Dk);
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(sum.x, sum.y), pack<T>(sum.z, sum.w));
  }
}

}  // namespace nsa::kernels
