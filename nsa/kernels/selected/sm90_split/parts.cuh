// The selected branch from the keys' side. Every block of keys is loaded once for all the queries of a chunk
// that chose it; what a query gets from one block is a part: its own softmax over at most 64 keys. A second kernel puts
// a query's parts together (join_forward.cuh), and computes its forced blocks, which no list names, itself.
//
// The backward pass makes dQ's parts in the same way, of all blocks (join.cuh).
//
// Why: from the queries' side each token reads its n blocks from L2 (n * l' * (Dk + Dv) * 2 bytes a group), which
// bounds that kernel. From this side a (query, block) pair costs h * Dk * 2 bytes of Q and h * Dv * 2 bytes of result,
// written and read.
//
//   CTA of one warpgroup, two to four per SM: K, V of 64 keys; two stages of Q [64 rows (token, head)]
//   gathered by the block's query list; S = Q K^T, P V with P in registers; the result leaves from registers
#pragma once

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/pieces.cuh"
#include "nsa/kernels/device/rows.cuh"
#include "nsa/kernels/device/slab.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/selected/sm90_split/items.cuh"

namespace nsa::kernels::hopper {

// The parts of the tokens [first, first + count) and of the pairs (batch entry, group) [first_pair, first_pair +
// pairs): [pairs, count, parts of a token, h, D].
struct Parts {
  void* data = nullptr;     // storage type
  float2* stats = nullptr;  // forward, the same without D: (maximum of the plain scores, sum)
  int first = 0, count = 0, first_pair = 0, pairs = 0;
  int per_token = 0;            // n * tiles_a_block
  int row_groups = 0;           // groups in a row of the table of blocks
  const int* unless = nullptr;  // not null: where it is not 0, the chunk goes jointly (ways.hpp)

  // Rows (part, head) of a chunk and turn are few enough for an int.
  __device__ int at(int pair, int t, int part) const {
    return ((pair - first_pair) * count + t - first) * per_token + part;
  }
};

// Note [Order of a part]
// A part's row stands in memory as a thread has it in m16n8k16's layout, what a thread has of 32 columns in 16 bytes:
// after a product nothing is exchanged between threads, and who adds up a row's parts restores the order once for all.

// Row g (half 0) or g + 8 of a product's result times `scale`.
template <typename T, int N>
__device__ inline void store_part(T* parts, int part, const float (&c)[N][4], int half, float scale) {
  T* const row = parts + static_cast<std::int64_t>(part) * (N * 8) + (threadIdx.x & 3) * 8;
#pragma unroll
  for (int n = 0; n < N; n += 4) {
    std::uint32_t x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = pack<T>(c[n + e][2 * half] * scale, c[n + e][2 * half + 1] * scale);
    // Read once, when the chunk is done: rows that are read again and again are to stay in L2.
    __stcs(reinterpret_cast<uint4*>(row + n * 8), make_uint4(x[0], x[1], x[2], x[3]));
  }
}

template <int Dk, int Dv, bool Backward>
struct PartsShape {
  static constexpr int kThreads = 128, kRows = 64, kOut = Backward ? Dk : Dv;
  static constexpr int kOwnRows = kRows * 8 / kThreads;  // of a tile, that a thread copies a share of
  // Per SM, as the registers allow.
  static constexpr int kCtasPerSm = Dk > 64 ? (Backward || Dk > 128 ? 2 : 3) : 4;
  using K = Slab<kKeyTile, Dk>;
  using V = Slab<kKeyTile, Dv>;
  using Q = Slab<kRows, Dk>;
  using O = Slab<kRows, Dv>;  // dO
  // Where two stages of Q would leave room for one block only, there is one, filled anew once S has read it.
  static constexpr bool kOneQ = Backward && Dk > 128;
  static constexpr int kSharedBytes =
      1024 + K::kBytes + V::kBytes + (kOneQ ? 1 : 2) * Q::kBytes + (Backward ? 2 * O::kBytes : 0);
};

// Of two tiles' rows (token, head), see Note [Rows ahead].
template <int Rows>
struct PartRows {
  int token[2][Rows];
  int part[2][Rows];  // h * part + head, or -1
  int q_offset[2][Rows];
};
// What the backward pass wants besides.
template <int Rows>
struct PartGradientRows {
  float2 softmax[2][Rows];
  float delta[2][Rows];
  int o_offset[2][Rows];
};

// What the kernel is given, and which part of it is this CTA's. `dout` and `delta` are for the backward pass.
struct PartsWork {
  const AttentionForward& p;
  const Rows& dout;
  const float* delta;
  const QueryLists& lists;
  const Pieces& pieces;
  const Parts& parts;
  const Heads heads;
  const int4 item;  // the first four of an Item
  const int pair, b, group, tile_part;
  struct {
    int first, last;
  } keys;

  __device__ PartsWork(const AttentionForward& forward, const Rows& d_out, const float* sums, const QueryLists& all,
                       const Pieces& cuts, const Items& items, const Parts& to)
      : p(forward),
        dout(d_out),
        delta(sums),
        lists(all),
        pieces(cuts),
        parts(to),
        heads(p.Hq / p.G),
        item(*reinterpret_cast<const int4*>(items.data + static_cast<std::int64_t>(blockIdx.z) * items.capacity +
                                            blockIdx.x)),
        pair(parts.first_pair + static_cast<int>(blockIdx.z)),
        b(pair / p.G),
        group(pair % p.G),
        tile_part(blockIdx.y),
        keys{item.z + tile_part * kKeyTile, min(item.z + (tile_part + 1) * kKeyTile, item.w)} {}
};

// The warpgroup of a CTA.
template <typename T, int Dk, int Dv, bool Backward>
class PartsWarpgroup {
 public:
  using Shape = PartsShape<Dk, Dv, Backward>;
  static constexpr int kRows = Shape::kRows;

  __device__ PartsWarpgroup(const PartsWork& all, std::uint32_t shared, PartRows<kRows>& two_tiles,
                            PartGradientRows<kRows>& gradients)
      : work(all),
        rows(two_tiles),
        gradient_rows(gradients),
        k_tile((shared + 1023) & ~1023u),
        v_tile(k_tile + Shape::K::kBytes),
        tiles((work.item.y * work.heads.h + kRows - 1) / kRows),
        order{work.heads, work.lists.tokens, work.lists.places, 0, work.item.y * work.heads.h, work.item.x},
        q(group_rows<T>(work.p.q, work.b, work.group, work.heads.h)),
        d_out(Backward ? group_rows<T>(work.dout, work.b, work.group, work.heads.h) : nullptr),
        q_token(static_cast<int>(work.p.q.token / 8)),
        q_head(static_cast<int>(work.p.q.head / 8)),
        o_token(static_cast<int>(work.dout.token / 8)),
        o_head(static_cast<int>(work.dout.head / 8)),
        owns_row(threadIdx.x < kRows),
        lane(threadIdx.x % 32),
        own_row(static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4),
        factor(work.p.scale * kLog2E) {}

  __device__ void run() {
    load_first_tiles();
    griddepcontrol_wait();
    if (tiles > 0) {  // always; but ptxas keeps less across a branch
      ask_ahead(0);
      cp_async_wait<1>();
      fence_proxy_async();
      __syncthreads();
      pin(s);
      if constexpr (Backward) pin(dp);
      wgmma_fence();
      start_s(0);
      start_dp(0);
      weigh(0);
    }
    for (int tile = 1; tile < tiles; ++tile) next(tile);
    cp_async_wait<0>();
    if (tiles == 1) {  // nothing has waited for V
      fence_proxy_async();
      __syncthreads();
    }
    pin(out);
    wgmma_fence();
    start_result();
    wgmma_wait<0>();
    pin(out);
    store_result();
  }

 private:
  static constexpr int kTiles = kKeyTile / 8, kSteps = kKeyTile / 16, kOut = Shape::kOut;
  // A row of a later tile; its head is counted when it is wanted, because registers are few.
  struct Entry {
    int token = -1, place = 0;
  };

  const PartsWork& work;
  PartRows<kRows>& rows;
  PartGradientRows<kRows>& gradient_rows;
  const std::uint32_t k_tile, v_tile;
  const int tiles;  // of rows
  const RowOrder order;
  const T *const q, *const d_out;
  const int q_token, q_head, o_token, o_head;
  const bool owns_row;
  const int lane, own_row;
  const float factor;
  Entry soon, later;  // of the tiles t+2, t+3
  RowStatistics statistics;
  float s[kTiles][4], dp[kTiles][4], out[kOut / 8][4];
  float scale[2] = {1.f, 1.f};    // of the result's rows
  int part[2];                    // of these rows, or -1
  std::uint32_t left[kSteps][4];  // P or dS of one tile

  __device__ std::uint32_t o_tile(int stage) const { return v_tile + Shape::V::kBytes + stage * Shape::O::kBytes; }
  __device__ std::uint32_t q_tile(int stage) const {
    return o_tile(Backward ? 2 : 0) + (Shape::kOneQ ? 0 : stage * Shape::Q::kBytes);
  }

  // -- rows

  __device__ Entry entry_of(int tile) const {
    const Row row = order.row(tile * kRows + static_cast<int>(threadIdx.x));
    return {row.token, row.place};
  }
  __device__ Row row_of(int tile, const Entry& x) const {
    const int row = tile * kRows + static_cast<int>(threadIdx.x);
    return {x.token, work.heads.head(row, work.heads.token(row)), x.place};
  }
  __device__ void store_offsets(int tile, int place, const Row& row) {
    rows.q_offset[tile % 2][place] = offset_of(row, q_token, q_head);
    if constexpr (Backward) gradient_rows.o_offset[tile % 2][place] = offset_of(row, o_token, o_head);
  }
  __device__ RowStatistics statistics_of(const Row& row) const {
    return Backward ? RowStatistics::load(work.p, work.delta, row, work.b, work.group, work.heads.h) : RowStatistics();
  }
  __device__ void store_row(int tile, int place, const Row& row, const RowStatistics& x) {
    rows.token[tile % 2][place] = max(row.token, 0);
    const int own_part = row.place * work.pieces.tiles_a_block + work.tile_part;
    rows.part[tile % 2][place] =
        row.token < 0 ? -1 : work.parts.at(work.pair, row.token, own_part) * work.heads.h + row.head;
    if constexpr (Backward) {
      gradient_rows.softmax[tile % 2][place] = x.origin_and_normaliser();
      gradient_rows.delta[tile % 2][place] = x.delta;
    }
  }
  __device__ void load_q(int tile) {
    if (tile < tiles) Shape::Q::template gather<Shape::kThreads>(q_tile(tile % 2), q, rows.q_offset[tile % 2]);
  }
  __device__ void load_rows(int tile) {
    if (tile < tiles) {
      if constexpr (!Shape::kOneQ) load_q(tile);
      if constexpr (Backward)
        Shape::O::template gather<Shape::kThreads>(o_tile(tile % 2), d_out, gradient_rows.o_offset[tile % 2]);
    }
    cp_async_commit();
  }
  __device__ void ask_ahead(int tile) {
    if (!owns_row) return;
    statistics = statistics_of(row_of(tile + 2, soon));
    later = entry_of(tile + 3);
  }

  // Note [First tiles]
  // Few CTAs have more than sixteen tiles, so what passes before the first product counts: item, tokens,
  // rows, each asked for by what came before it. For the first tile a thread asks for the tokens of those rows that it
  // copies a share of, and waits for no other one; the second tile's rows belong to the other half of the threads. The
  // first scores wait for K and the first tile alone (backward for V too, which dP wants at once).
  __device__ void load_first_tiles() {
    const AttentionForward& p = work.p;
    int offsets[Shape::kOwnRows], o_offsets[Shape::kOwnRows];
#pragma unroll
    for (int i = 0; i < Shape::kOwnRows; ++i) {
      const int row = Shape::Q::template own_row<Shape::kThreads>(i);
      const Row x{order.token(row), work.heads.head(row, work.heads.token(row))};
      offsets[i] = offset_of(x, q_token, q_head);
      o_offsets[i] = offset_of(x, o_token, o_head);
    }
    const Row own = order.row(static_cast<int>(threadIdx.x));  // of the tile 0 or 1
    if (owns_row) soon = entry_of(2);
    const T* k = static_cast<const T*>(p.k.data) + work.b * p.k.batch + work.group * p.k.head;
    const T* v = static_cast<const T*>(p.v.data) + work.b * p.v.batch + work.group * p.v.head;
    const auto load_v = [&] {
      Shape::V::template load<Shape::kThreads>(v_tile, v, static_cast<int>(p.v.token), work.keys.first, work.keys.last);
    };
    Shape::K::template load<Shape::kThreads>(k_tile, k, static_cast<int>(p.k.token), work.keys.first, work.keys.last);
    if constexpr (Backward) load_v();
    Shape::Q::template gather_own<Shape::kThreads>(q_tile(0), q, offsets);
    if constexpr (Backward) Shape::O::template gather_own<Shape::kThreads>(o_tile(0), d_out, o_offsets);
    cp_async_commit();
    const RowStatistics own_statistics = statistics_of(own);
    if constexpr (!Backward) load_v();
    if (owns_row)
      store_offsets(2, static_cast<int>(threadIdx.x), row_of(2, soon));
    else
      store_offsets(1, static_cast<int>(threadIdx.x) - kRows, own);
    __syncthreads();
    load_rows(1);
    store_row(static_cast<int>(threadIdx.x) / kRows, static_cast<int>(threadIdx.x) % kRows, own, own_statistics);
  }

  // -- products
  // See Note [Scores ahead] (sm90_dkv.cuh): here they run while a tile's result is stored.

  __device__ void start_s(int tile) {
    product_of_columns<T, Dk / 16>(s, typename Shape::Q(), q_tile(tile % 2), typename Shape::K(), k_tile);
    wgmma_commit();
  }
  __device__ void start_dp(int tile) {
    if constexpr (Backward) {
      product_of_columns<T, Dv / 16>(dp, typename Shape::O(), o_tile(tile % 2), typename Shape::V(), v_tile);
      wgmma_commit();
    }
  }
  __device__ void start_result() {
    const auto right = [&](int kk) { return Backward ? Shape::K::rows(k_tile, kk) : Shape::V::rows(v_tile, kk); };
    Wgmma<T, kOut>::template values<0>(out, left[0], right(0));
#pragma unroll
    for (int kk = 1; kk < kSteps; ++kk) Wgmma<T, kOut>::values(out, left[kk], right(kk));
    wgmma_commit();
  }

  // -- a tile

  // The last tile's result, and this one's scores.
  __device__ void next(int tile) {
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads();  // this tile's rows are there, and the last one's place is free
    pin(out);
    pin(s);
    wgmma_fence();
    start_result();
    start_s(tile);
    load_rows(tile + 1);
    if (owns_row) {
      store_row(tile + 1, static_cast<int>(threadIdx.x), row_of(tile + 1, soon), statistics);
      store_offsets(tile + 2, static_cast<int>(threadIdx.x), row_of(tile + 2, later));
      soon = later;
    }
    wgmma_wait<1>();
    pin(out);
    if constexpr (Backward) {
      pin(dp);
      wgmma_fence();
      start_dp(tile);
    }
    store_result();
    ask_ahead(tile);
    weigh(tile);
  }

  // From the scores, which are on their way, to what the result is the product of.
  __device__ void weigh(int tile) {
    const int stage = tile % 2;
    const int t[2] = {rows.token[stage][own_row], rows.token[stage][own_row + 8]};
    // The list ascends: later tiles see every key.
    const bool masked =
        rows.token[stage][0] < work.keys.first + kKeyTile - 1 || work.keys.first + kKeyTile > work.keys.last;
#pragma unroll
    for (int half = 0; half < 2; ++half) part[half] = rows.part[stage][own_row + 8 * half];
    wgmma_wait<Backward ? 1 : 0>();
    pin(s);
    if constexpr (Shape::kOneQ) {
      __syncthreads();  // all have this tile's S
      load_q(tile + 1);
      cp_async_commit();
    }
    if constexpr (Backward)
      weigh_backward(stage, masked, t);
    else
      weigh_forward(masked, t);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) as_a<T>(left[kk], s, kk);
  }
  __device__ void mask(const int (&t)[2], float by) {
    const auto seen = [&](int n, int i) {
      const int key = work.keys.first + n * 8 + lane % 4 * 2 + i % 2;
      return key <= t[i / 2] && key < work.keys.last;
    };
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!seen(n, i)) s[n][i] = by;
  }
  __device__ void weigh_backward(int stage, bool masked, const int (&t)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 softmax = gradient_rows.softmax[stage][own_row + 8 * half];
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i)
          s[n][i] = exp2_fast(fmaf(s[n][i], factor, -softmax.x)) * softmax.y;
    }
    wgmma_wait<0>();
    pin(dp);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float own_delta = gradient_rows.delta[stage][own_row + 8 * half];
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) s[n][i] *= dp[n][i] - own_delta;
    }
    if (masked) mask(t, 0.f);
  }
  __device__ void weigh_forward(bool masked, const int (&t)[2]) {
    if (masked) mask(t, -INFINITY);
    RunningSoftmax softmax;
    softmax.update(s, factor, scale);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(softmax.sum[half]);
      scale[half] = normaliser(sum);
      if (lane % 4 == 0 && part[half] >= 0 && work.keys.first <= t[half])
        work.parts.stats[part[half]] = make_float2(softmax.maximum[half], sum);
    }
  }
  // From the registers, see Note [Order of a part]: the tile's place may be filled anew meanwhile.
  __device__ void store_result() const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (part[half] >= 0) store_part(static_cast<T*>(work.parts.data), part[half], out, half, scale[half]);
  }
};

template <typename T, int Dk, int Dv, bool Backward>
__global__ void __launch_bounds__(128, PartsShape<Dk, Dv, Backward>::kCtasPerSm)
    parts_kernel(const AttentionForward p, const Rows dout, const float* delta, const QueryLists lists,
                 const Pieces pieces, const Items items, const Parts parts) {
#if NSA_ON_HOPPER
  constexpr int kRows = PartsShape<Dk, Dv, Backward>::kRows;
  extern __shared__ char shared[];
  __shared__ PartRows<kRows> rows;
  __shared__ PartGradientRows<kRows> gradient_rows;
  const PartsWork work(p, dout, delta, lists, pieces, items, parts);
  griddepcontrol_launch_dependents();
  if (work.keys.first >= work.keys.last) return griddepcontrol_wait();
  PartsWarpgroup<T, Dk, Dv, Backward>(work, shared_address(shared), rows, gradient_rows).run();
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
