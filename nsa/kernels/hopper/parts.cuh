// The selected branch from the keys' side. Every block of keys is loaded once for all the queries of a chunk
// that chose it; what a query gets from one block is a part: its own softmax over at most 64 keys. A second kernel puts
// a query's parts together.
//
// The backward pass makes dQ's parts in the same way.
//
// Why: from the queries' side each token reads its n blocks from L2 (n * l' * (Dk + Dv) * 2 bytes a group), which
// bounds that kernel. From this side a (query, block) pair costs h * Dk * 2 bytes of Q and h * Dv * 2 bytes of result,
// written and read.
//
//   block of one warpgroup, two to four a multiprocessor: K, V of 64 keys; two stages of Q [64 rows (token, head)]
//   gathered by the block's query list; S = Q K^T, P V with P in registers; the result leaves from registers
#pragma once

#include "nsa/kernels/attention/pieces.cuh"
#include "nsa/kernels/attention/softmax.cuh"
#include "nsa/kernels/common/tile.cuh"
#include "nsa/kernels/hopper/hopper.hpp"
#include "nsa/kernels/hopper/rows.cuh"
#include "nsa/kernels/hopper/slab.cuh"

namespace nsa::kernels::hopper {

// The parts of the tokens [first, first + count) and of the pairs (batch entry, group) [first_pair, first_pair +
// pairs): [pairs, count, parts of a token, h, D].
struct Parts {
  void* data = nullptr;     // storage type
  float2* stats = nullptr;  // forward, the same without D: (maximum of the plain scores, sum)
  int first = 0, count = 0, first_pair = 0, pairs = 0;
  int per_token = 0;            // n * tiles_a_block
  const int* unless = nullptr;  // not null: where it is not 0, the chunk goes jointly (ways.hpp)

  // Rows (part, head) of a chunk and turn are few enough for an int.
  __device__ int at(int pair, int t, int part) const {
    return ((pair - first_pair) * count + t - first) * per_token + part;
  }
};

// The work of a chunk: pieces of lists. List L, whose first entry is the offset-th of all, owns the items from
// floor(offset / tokens) + L up to the next list's first (the last list, up to `capacity`); those that it does not need
// say so with piece -1.
struct Item {
  int list, piece;
};
static __global__ void __launch_bounds__(256) items_kernel(const int* offsets, int first_list, int lists, int tokens,
                                                           Item* items, int capacity, const int* unless) {
  if (unless && *unless) return;
  const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x), list = first_list + i;
  if (i >= lists) return;
  const int origin = offsets[first_list], offset = offsets[list] - origin, next = offsets[list + 1] - origin;
  const int pieces = (next - offset + tokens - 1) / tokens;
  const int first = offset / tokens + i, last = i + 1 < lists ? next / tokens + i + 1 : capacity;
  for (int item = first; item < last; ++item) items[item] = {list, item - first < pieces ? item - first : -1};
}

template <int Dk, int Dv, bool Backward>
struct PartsShape {
  static constexpr int kThreads = 128, kRows = 64, kOut = Backward ? Dk : Dv;
  // A multiprocessor, as the registers allow.
  static constexpr int kBlocks = Dk > 64 ? (Backward || Dk > 128 ? 2 : 3) : 4;
  using K = Slab<kKeyTile, Dk>;
  using V = Slab<kKeyTile, Dv>;
  using Q = Slab<kRows, Dk>;
  using O = Slab<kRows, Dv>;  // dO
  static constexpr int kStageBytes = Q::kBytes + (Backward ? O::kBytes : 0);
  static constexpr int kSharedBytes = 1024 + K::kBytes + V::kBytes + 2 * kStageBytes;
};

// `dout` and `delta` are for the backward pass.
template <typename T, int Dk, int Dv, bool Backward>
__global__ void __launch_bounds__(128, PartsShape<Dk, Dv, Backward>::kBlocks)
    parts_kernel(const AttentionForward p, const Rows dout, const float* delta, const QueryLists lists,
                 const Pieces pieces, const Item* items, const Parts parts) {
#if NSA_ON_HOPPER
  if (parts.unless && *parts.unless) return;
  using Shape = PartsShape<Dk, Dv, Backward>;
  constexpr int kRows = Shape::kRows, kTiles = kKeyTile / 8, kOut = Shape::kOut;
  extern __shared__ char shared[];
  // Of two tiles' rows, see Note [Rows ahead].
  __shared__ int row_token[2][kRows];
  __shared__ int row_part[2][kRows];        // h * part + head, or -1
  __shared__ float2 row_softmax[2][kRows];  // backward
  __shared__ float row_delta[2][kRows];
  __shared__ int q_offset[2][kRows], o_offset[2][kRows];
  const Heads heads(p.Hq / p.G);
  const Item item = items[blockIdx.x];
  if (item.piece < 0) return;
  const int pair = item.list / p.selection.J, b = pair / p.G, group = pair % p.G, tile_part = blockIdx.y;
  const KeyTile keys = list_tile(lists, p, pieces, heads, item.piece,
                                 item.list % p.selection.J * pieces.tiles_a_block + tile_part, pair);
  if (keys.first >= keys.last) return;
  const int offset = lists.offsets[item.list];

  const std::uint32_t k_tile = (shared_address(shared) + 1023) & ~1023u, v_tile = k_tile + Shape::K::kBytes;
  const auto q_tile = [&](int stage) { return v_tile + Shape::V::kBytes + stage * Shape::kStageBytes; };
  const auto o_tile = [&](int stage) { return q_tile(stage) + Shape::Q::kBytes; };
  const T* k = static_cast<const T*>(p.k.data) + b * p.k.batch + group * p.k.head;
  const T* v = static_cast<const T*>(p.v.data) + b * p.v.batch + group * p.v.head;
  Shape::K::template load<Shape::kThreads>(k_tile, k, static_cast<int>(p.k.token), keys.first, keys.last);
  Shape::V::template load<Shape::kThreads>(v_tile, v, static_cast<int>(p.v.token), keys.first, keys.last);

  const int tiles = (keys.row_end - keys.row_begin + kRows - 1) / kRows;
  const RowOrder order{heads, lists.tokens + offset, lists.places + offset, keys.row_begin, keys.row_end};
  const T* q = group_rows<T>(p.q, b, group, heads.h);
  const T* d_out = Backward ? group_rows<T>(dout, b, group, heads.h) : nullptr;
  const int q_token = static_cast<int>(p.q.token / 8), q_head = static_cast<int>(p.q.head / 8);
  const int o_token = static_cast<int>(dout.token / 8), o_head = static_cast<int>(dout.head / 8);
  const bool owns_row = threadIdx.x < kRows;
  const auto row_of = [&](int tile) {
    return order.row(keys.row_begin + tile * kRows + static_cast<int>(threadIdx.x));
  };
  const auto store_offsets = [&](int tile, const Row& row) {
    q_offset[tile % 2][threadIdx.x] = offset_of(row, q_token, q_head);
    if constexpr (Backward) o_offset[tile % 2][threadIdx.x] = offset_of(row, o_token, o_head);
  };
  const auto statistics_of = [&](const Row& row) {
    return Backward ? RowStatistics::load(p, delta, row, b, group, heads.h) : RowStatistics();
  };
  const auto store_row = [&](int tile, const Row& row, const RowStatistics& x) {
    row_token[tile % 2][threadIdx.x] = max(row.token, 0);
    const int part = row.place * pieces.tiles_a_block + tile_part;
    row_part[tile % 2][threadIdx.x] = row.token < 0 ? -1 : parts.at(pair, row.token, part) * heads.h + row.head;
    if constexpr (Backward) {
      row_softmax[tile % 2][threadIdx.x] = x.origin_and_normaliser();
      row_delta[tile % 2][threadIdx.x] = x.delta;
    }
  };
  const auto load_rows = [&](int tile) {
    if (tile < tiles) {
      Shape::Q::template gather<Shape::kThreads>(q_tile(tile % 2), q, q_offset[tile % 2]);
      if constexpr (Backward) Shape::O::template gather<Shape::kThreads>(o_tile(tile % 2), d_out, o_offset[tile % 2]);
    }
    commit_copies();
  };
  Row soon, later;  // of the tiles t+2, t+3
  RowStatistics statistics;
  const auto ask_ahead = [&](int tile) {
    if (!owns_row) return;
    statistics = statistics_of(soon);
    later = row_of(tile + 3);
  };
  if (owns_row) {
    for (int tile = 0; tile < 2; ++tile) {
      const Row row = row_of(tile);
      store_offsets(tile, row);
      store_row(tile, row, statistics_of(row));
    }
    soon = row_of(2);
  }
  __syncthreads();
  load_rows(0);
  load_rows(1);
  __syncthreads();
  if (owns_row) store_offsets(2, soon);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own_row = warp * 16 + lane / 4;
  const float factor = p.scale * kLog2E;
  float s[kTiles][4], dp[kTiles][4], out[kOut / 8][4];
  float scale[2] = {1.f, 1.f};           // of the result's rows
  int part[2];                           // of these rows, or -1
  std::uint32_t left[kKeyTile / 16][4];  // P or dS of one tile
  // See Note [Scores ahead] (dkv.cuh): here they run while a tile's result is stored.
  const auto start_s = [&](int tile) {
    product_of_columns<T, Dk / 16>(s, typename Shape::Q(), q_tile(tile % 2), typename Shape::K(), k_tile);
    products_commit();
  };
  const auto start_dp = [&](int tile) {
    if constexpr (Backward) {
      product_of_columns<T, Dv / 16>(dp, typename Shape::O(), o_tile(tile % 2), typename Shape::V(), v_tile);
      products_commit();
    }
  };
  const auto start_result = [&] {
    const auto right = [&](int kk) { return Backward ? Shape::K::rows(k_tile, kk) : Shape::V::rows(v_tile, kk); };
    Product<T, kOut>::template values<0>(out, left[0], right(0));
#pragma unroll
    for (int kk = 1; kk < kKeyTile / 16; ++kk) Product<T, kOut>::values(out, left[kk], right(kk));
    products_commit();
  };
  // From the scores, which are on their way, to what the result is the product of.
  const auto weigh = [&](int tile) {
    const int stage = tile % 2;
    const int t[2] = {row_token[stage][own_row], row_token[stage][own_row + 8]};
    // The list ascends: later tiles see every key.
    const bool masked = row_token[stage][0] < keys.first + kKeyTile - 1 || keys.first + kKeyTile > keys.last;
    const auto seen = [&](int n, int i) {
      const int key = keys.first + n * 8 + lane % 4 * 2 + i % 2;
      return key <= t[i / 2] && key < keys.last;
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) part[half] = row_part[stage][own_row + 8 * half];
    products_wait<Backward ? 1 : 0>();
    pin(s);
    if constexpr (Backward) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 softmax = row_softmax[stage][own_row + 8 * half];
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i)
            s[n][i] = exp2_fast(fmaf(s[n][i], factor, -softmax.x)) * softmax.y;
      }
      products_wait<0>();
      pin(dp);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float own_delta = row_delta[stage][own_row + 8 * half];
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) s[n][i] *= dp[n][i] - own_delta;
      }
      if (masked) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (!seen(n, i)) s[n][i] = 0.f;
      }
    } else {
      if (masked) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (!seen(n, i)) s[n][i] = -INFINITY;
      }
      RunningSoftmax softmax;
      softmax.update(s, factor, scale);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = quad_sum(softmax.sum[half]);
        scale[half] = normaliser(sum);
        if (lane % 4 == 0 && part[half] >= 0 && keys.first <= t[half])
          parts.stats[part[half]] = make_float2(softmax.maximum[half], sum);
      }
    }
#pragma unroll
    for (int kk = 0; kk < kKeyTile / 16; ++kk) as_a<T>(left[kk], s, kk);
  };
  // From the registers, a quad's lanes 64 bytes of a row at a time: the tile's place may be filled anew meanwhile.
  const auto store_result = [&] {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* const row = static_cast<T*>(parts.data) + static_cast<std::int64_t>(part[half]) * kOut + lane % 4 * 8;
#pragma unroll
      for (int n = 0; n < kOut / 8; n += 4) {
        std::uint32_t x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[e] = pack<T>(out[n + e][2 * half] * scale[half], out[n + e][2 * half + 1] * scale[half]);
        transpose_quad(x);
        if (part[half] >= 0) *reinterpret_cast<uint4*>(row + n * 8) = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  };
  if (tiles > 0) {
    ask_ahead(0);
    wait_copies<1>();
    publish_to_async();
    __syncthreads();
    pin(s);
    if constexpr (Backward) pin(dp);
    products_begin();
    start_s(0);
    start_dp(0);
    weigh(0);
  }
  for (int tile = 1; tile < tiles; ++tile) {
    wait_copies<0>();
    publish_to_async();
    __syncthreads();  // this tile's rows are there, and the last one's place is free
    pin(out);
    pin(s);
    products_begin();
    start_result();
    start_s(tile);
    load_rows(tile + 1);
    if (owns_row) {
      store_row(tile + 1, soon, statistics);
      store_offsets(tile + 2, later);
      soon = later;
    }
    products_wait<1>();
    pin(out);
    if constexpr (Backward) {
      pin(dp);
      products_begin();
      start_dp(tile);
    }
    ask_ahead(tile);
    store_result();
    weigh(tile);
  }
  wait_copies<0>();
  if (tiles > 0) {
    pin(out);
    products_begin();
    start_result();
    products_wait<0>();
    pin(out);
    store_result();
  }
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
