// The selected branch's whole backward pass from the keys' side: for an item of a chunk (parts.cuh) dK and dV of its 64
// keys, and a part of dQ for each of its rows. Five products a tile of rows: dq by parts and dkv by lists, one after
// the other, are seven, compute every weight twice and gather every row of Q and dO twice, which is what bounds them.
//
//   CTA of one warpgroup, two per SM: K, V of 64 keys; two stages of Q, dO [64 rows (token, head)]
//   gathered by the block's query list; dS^T of one tile
//   S^T = K Q^T and dP^T = V dO^T as in sm90_dkv.cuh; dS^T goes to shared memory, whence dQ = dS K reads it transposed
//   and dK += dS^T Q as it lies; dV += P^T dO with P^T in registers
//
// Note [One tile]
// The tensor cores' queue holds dQ and dK of the last tile, then its dV and this tile's S. dQ's registers are those of
// S and dP: they are stored while dK runs. Rows are gathered once dV has read the last ones, under S, and arrive under
// the weights and dQ; then comes dP. No product is on its way where the loop begins anew, see Note [Scores ahead]
// (sm90_dkv.cuh).
#pragma once

#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/pieces.cuh"
#include "nsa/kernels/device/rows.cuh"
#include "nsa/kernels/device/slab.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/selected/sm90_backward/key_sums.cuh"
#include "nsa/kernels/selected/sm90_split/parts.cuh"

namespace nsa::kernels::hopper {

template <int Dk, int Dv>
struct PartsBackwardShape {
  static constexpr int kThreads = 128, kRows = 64;
  static constexpr int kOwnRows = kRows * 8 / kThreads;  // of a tile, that a thread copies a share of
  static constexpr int kCtasPerSm = 2;                   // per SM, as the registers allow
  using K = Slab<kKeyTile, Dk>;
  using V = Slab<kKeyTile, Dv>;
  using Q = Slab<kRows, Dk>;
  using O = Slab<kRows, Dv>;         // dO
  using Ds = Slab<kKeyTile, kRows>;  // dS^T
  static constexpr int kStageBytes = Q::kBytes + O::kBytes;
  static constexpr int kSharedBytes = 1024 + K::kBytes + V::kBytes + Ds::kBytes + 2 * kStageBytes;  // 1024: to align
};

// Of two tiles' rows (token, head), and of four's what their tokens say. See Note [Rows ahead].
template <int Rows>
struct PartsBackwardRows {
  alignas(16) float2 softmax[2][Rows];
  alignas(16) float delta[2][Rows];
  alignas(16) int end[4][Rows];    // one past the last key that the row sees
  int part[4][Rows], at[4][Rows];  // h * part + head, head * S + token, or -1
  int q_offset[4][Rows], o_offset[4][Rows];
  float* own_sums;  // where the results go: known early, wanted late
};

// What the kernel is given, and which part of it is this CTA's.
struct PartsBackwardWork {
  const AttentionBackward& p;
  const AttentionForward& f;
  const QueryLists& lists;
  const Pieces& pieces;
  const Parts& parts;
  const KeySums& key_sums;
  const Heads heads;
  const int pair, tile_part;
  const Item item;
  const int b, group, rows;
  struct {
    int first, last;
  } keys;

  __device__ PartsBackwardWork(const AttentionBackward& backward, const QueryLists& all, const Pieces& cuts,
                               const Items& items, const Parts& to, const KeySums& sums)
      : p(backward),
        f(backward.forward),
        lists(all),
        pieces(cuts),
        parts(to),
        key_sums(sums),
        heads(f.Hq / f.G),
        pair(blockIdx.z),
        tile_part(blockIdx.y),
        item(items.data[static_cast<std::int64_t>(pair) * items.capacity + blockIdx.x]),
        b(pair / f.G),
        group(pair % f.G),
        rows(item.tokens * heads.h),
        keys{item.first + tile_part * kKeyTile, min(item.first + (tile_part + 1) * kKeyTile, item.last)} {}
};

// The warpgroup of a CTA.
template <typename T, int Dk, int Dv>
class PartsBackwardWarpgroup {
 public:
  using Shape = PartsBackwardShape<Dk, Dv>;
  static constexpr int kRows = Shape::kRows;

  __device__ PartsBackwardWarpgroup(const PartsBackwardWork& all, std::uint32_t shared,
                                    PartsBackwardRows<kRows>& tiles_of)
      : work(all),
        x(tiles_of),
        k_tile((shared + 1023) & ~1023u),
        v_tile(k_tile + Shape::K::kBytes),
        ds_tile(v_tile + Shape::V::kBytes),
        tiles((work.rows + kRows - 1) / kRows),
        q(group_rows<T>(work.f.q, work.b, work.group, work.heads.h)),
        dout(group_rows<T>(work.p.dout, work.b, work.group, work.heads.h)),
        q_token(static_cast<int>(work.f.q.token / 8)),
        q_head(static_cast<int>(work.f.q.head / 8)),
        o_token(static_cast<int>(work.p.dout.token / 8)),
        o_head(static_cast<int>(work.p.dout.head / 8)),
        group_statistics((static_cast<std::int64_t>(work.b) * work.f.Hq + work.group * work.heads.h) * work.f.S),
        asks_statistics(threadIdx.x < kRows),
        own_place(static_cast<int>(threadIdx.x) % kRows),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        own_row(warp * 16 + lane / 4),
        factor(work.f.scale * kLog2E) {}

  __device__ void load_keys() {
    const AttentionForward& f = work.f;
    const T* k = static_cast<const T*>(f.k.data) + work.b * f.k.batch + work.group * f.k.head;
    const T* v = static_cast<const T*>(f.v.data) + work.b * f.v.batch + work.group * f.v.head;
    Shape::K::template load<Shape::kThreads>(k_tile, k, static_cast<int>(f.k.token), work.keys.first, work.keys.last);
    Shape::V::template load<Shape::kThreads>(v_tile, v, static_cast<int>(f.v.token), work.keys.first, work.keys.last);
  }
  __device__ void begin() {
    for (int tile = asks_statistics ? 0 : 1; tile < 3; tile += 2) {
      ask_row(tile);
      store_row(tile);
    }
    __syncthreads();
    ask_statistics(asks_statistics ? 0 : 1);
    load_rows(0, offsets_of(0));
    load_rows(1, offsets_of(1));
    store_statistics(asks_statistics ? 0 : 1);
    float* const sums = sums_of_item();
    if (threadIdx.x == 0) x.own_sums = sums;
    griddepcontrol_wait();
    if (work.item.piece == 0) {
      load_sums(dk, sums);
      load_sums(dv, sums + kKeyTile * Dk);
    }
  }
  template <bool WithDq>
  __device__ void run() {
    ask_ahead(0);
    cp_async_wait<1>();
    fence_proxy_async();
    __syncthreads();
    weigh(0, [] {});
    for (int tile = 1; tile < tiles; ++tile) {
      ask_parts(tile - 1);
      fence_proxy_async();
      __syncthreads();  // the last tile's dS^T is there
      make_dq<WithDq>(tile - 1, [] {
        cp_async_wait<0>();
        fence_proxy_async();
      });
      __syncthreads();  // this tile's rows are there, and the last one's places in `parts` are used up
      pin(dv);
      wgmma_fence();
      start_dv(tile - 1);
      weigh(tile, [&] {
        store_asked(tile - 1);
        const Offsets offsets = offsets_of(tile + 1);
        wgmma_wait<1>();
        pin(dk);
        pin(dv);
        __syncthreads();  // the last tile's rows and its dS^T are used up
        load_rows(tile + 1, offsets);
        ask_ahead(tile);
      });
    }
    ask_parts(tiles - 1);
    fence_proxy_async();
    __syncthreads();
    make_dq<WithDq>(tiles - 1, [] {});
    pin(dv);
    wgmma_fence();
    start_dv(tiles - 1);
    wgmma_wait<0>();
    pin(dk);
    pin(dv);
  }
  __device__ void end() {
    cp_async_wait<0>();
    store_sums(dk, x.own_sums);
    store_sums(dv, x.own_sums + kKeyTile * Dk);
  }

 private:
  static constexpr int kTiles = kRows / 8, kSteps = kRows / 16;
  struct Asked {
    float2 softmax;
    float delta;
  };
  struct Named {
    int token, place, head;
  };
  // What shared memory says of a tile is asked for before what must be waited for anyway.
  struct Offsets {
    int q[Shape::kOwnRows], o[Shape::kOwnRows];
  };

  const PartsBackwardWork& work;
  PartsBackwardRows<kRows>& x;
  const std::uint32_t k_tile, v_tile, ds_tile;
  const int tiles;  // of rows
  const T *const q, *const dout;
  const int q_token, q_head, o_token, o_head;
  const std::int64_t group_statistics;
  // Half of the threads ask for statistics, the other half for tokens: see Note [Rows ahead]. Both in
  // the same registers.
  const bool asks_statistics;
  const int own_place, warp, lane, own_row;
  const float factor;
  union {
    Asked statistics;
    Named row;
  } ahead;
  float dk[Dk / 8][4] = {}, dv[Dv / 8][4] = {};
  std::uint32_t weights[kSteps][4];  // P^T of one tile
  int part[2];                       // of dQ, of the thread's rows

  __device__ std::uint32_t q_tile(int stage) const { return ds_tile + Shape::Ds::kBytes + stage * Shape::kStageBytes; }
  __device__ std::uint32_t o_tile(int stage) const { return q_tile(stage) + Shape::Q::kBytes; }

  // -- rows

  __device__ void ask_row(int tile) {
    const int i = tile * kRows + own_place;
    ahead.row.token = -1;
    if (i >= work.rows) return;
    const int entry = work.heads.token(i), at = work.item.entry + entry;
    ahead.row = {work.lists.tokens[at], work.lists.places[at], work.heads.head(i, entry)};
  }
  __device__ void store_row(int tile) {
    const auto [token, place, head] = ahead.row;
    const bool exists = token >= 0;
    x.end[tile % 4][own_place] = exists ? min(token + 1, work.keys.last) : work.keys.last;
    x.at[tile % 4][own_place] = exists ? head * work.f.S + token : -1;
    const int own_part = place * work.pieces.tiles_a_block + work.tile_part;
    x.part[tile % 4][own_place] = exists ? work.parts.at(work.pair, token, own_part) * work.heads.h + head : -1;
    x.q_offset[tile % 4][own_place] = exists ? token * q_token + head * q_head : -1;
    x.o_offset[tile % 4][own_place] = exists ? token * o_token + head * o_head : -1;
  }
  __device__ void ask_statistics(int tile) {
    const int at = x.at[tile % 4][own_place];
    ahead.statistics = {{0.f, 0.f}, 0.f};
    if (at < 0) return;
    ahead.statistics = {(reinterpret_cast<const float2*>(work.f.stats) + group_statistics)[at],
                        (work.p.delta + group_statistics)[at]};
  }
  __device__ void store_statistics(int tile) {
    const auto [softmax, delta] = ahead.statistics;
    x.softmax[tile % 2][own_place] = RowStatistics{softmax, delta}.origin_and_normaliser();
    x.delta[tile % 2][own_place] = delta;
  }
  __device__ Offsets offsets_of(int tile) const {
    Offsets of;
#pragma unroll
    for (int i = 0; i < Shape::kOwnRows; ++i) {
      const int row = Shape::Q::template own_row<Shape::kThreads>(i);
      of.q[i] = x.q_offset[tile % 4][row], of.o[i] = x.o_offset[tile % 4][row];
    }
    return of;
  }
  __device__ void load_rows(int tile, const Offsets& of) {
    if (tile < tiles) {
      Shape::Q::template gather_own<Shape::kThreads>(q_tile(tile % 2), q, of.q);
      Shape::O::template gather_own<Shape::kThreads>(o_tile(tile % 2), dout, of.o);
    }
    cp_async_commit();
  }
  __device__ void ask_ahead(int tile) {
    if (asks_statistics)
      ask_statistics(tile + 2);
    else
      ask_row(tile + 3);
  }
  __device__ void store_asked(int tile) {
    if (asks_statistics)
      store_statistics(tile + 2);
    else
      store_row(tile + 3);
  }
  __device__ void ask_parts(int tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) part[half] = x.part[tile % 4][own_row + 8 * half];
  }
  // See Note [Sums over chunks] (key_sums.cuh).
  __device__ float* sums_of_item() const {
    const Pieces& pieces = work.pieces;
    const int J = work.f.selection.J;
    std::int64_t slot =
        (static_cast<std::int64_t>(work.pair) * J + work.item.block) * pieces.tiles_a_block + work.tile_part;
    if (work.item.piece > 0)
      slot = second_slot(work.key_sums, pieces, work.pair,
                         work.item.entry - work.item.piece * pieces.tokens - *work.lists.offset(work.pair, 0, J),
                         work.tile_part) +
             (work.item.piece - 1) * pieces.tiles_a_block;
    return (work.item.piece == 0 ? work.key_sums.sums : work.key_sums.partials) + slot * kPartial<Dk, Dv>;
  }

  // -- a tile

  __device__ void mask(int tile, float (&c)[kTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int2 end = *reinterpret_cast<const int2*>(&x.end[tile % 4][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (work.keys.first + own_row + i / 2 * 8 >= (i % 2 ? end.y : end.x)) c[n][i] = 0.f;
    }
  }
  // From a tile's rows to P^T and dS^T. `meanwhile` passes under S^T.
  template <typename Meanwhile>
  __device__ void weigh(int tile, Meanwhile&& meanwhile) {
    const int stage = tile % 2;
    float s[kTiles][4], dp[kTiles][4];
    // The list ascends: later rows see every key.
    const bool masked = x.end[tile % 4][0] < work.keys.first + kKeyTile;
    pin(s);
    wgmma_fence();
    product_of_columns<T, Dk / 16>(s, typename Shape::K(), anew(k_tile), typename Shape::Q(), q_tile(stage));
    wgmma_commit();
    meanwhile();
    pin(dp);
    wgmma_fence();
    product_of_columns<T, Dv / 16>(dp, typename Shape::V(), anew(v_tile), typename Shape::O(), o_tile(stage));
    wgmma_commit();
    wgmma_wait<1>();
    pin(s);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float4 softmax = *reinterpret_cast<const float4*>(&x.softmax[stage][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[n][i] = exp2_fast(fmaf(s[n][i], factor, i % 2 ? -softmax.z : -softmax.x)) * (i % 2 ? softmax.w : softmax.y);
    }
    if (masked) mask(tile, s);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) as_a<T>(weights[kk], s, kk);
    wgmma_wait<0>();
    pin(dp);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(&x.delta[stage][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = s[n][i] * (dp[n][i] - (i % 2 ? delta.y : delta.x));
    }
    // Once more: a row that the keys do not concern may hold a NaN in dO, and 0 * NaN is one.
    if (masked) mask(tile, dp);
    store_ds(dp);
  }
  __device__ void store_ds(float (&ds)[kTiles][4]) const {
    // 16 rows further is two chunks further: of the swizzled place it changes two bits.
    const std::uint32_t place = Shape::Ds::at(anew(ds_tile), warp * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) {
      std::uint32_t gradients[4];
      as_a<T>(gradients, ds, kk);
      stmatrix(place ^ static_cast<std::uint32_t>(kk * 32), gradients);
    }
  }

  // -- sums

  __device__ void start_dk(int tile) {
    const std::uint32_t ds = anew(ds_tile);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk)
      Wgmma<T, Dk>::template values<1, false>(dk, Shape::Ds::columns(ds, kk), Shape::Q::rows(q_tile(tile % 2), kk));
    wgmma_commit();
  }
  __device__ void start_dv(int tile) {
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) Wgmma<T, Dv>::values(dv, weights[kk], Shape::O::rows(o_tile(tile % 2), kk));
    wgmma_commit();
  }
  // dQ's part of a tile, stored from the registers, and dK's product begins. `publish` comes before the stores: the
  // fence would wait for them.
  template <bool WithDq, typename Publish>
  __device__ void make_dq(int tile, Publish&& publish) {
    pin(dk);
    if constexpr (WithDq) {
      const std::uint32_t ds = anew(ds_tile), keys_tile = anew(k_tile);
      float dq[Dk / 8][4];
      pin(dq);
      wgmma_fence();
      Wgmma<T, Dk>::template values<0, true>(dq, Shape::Ds::rows(ds, 0), Shape::K::rows(keys_tile, 0));
#pragma unroll
      for (int kk = 1; kk < kKeyTile / 16; ++kk)
        Wgmma<T, Dk>::template values<1, true>(dq, Shape::Ds::rows(ds, kk), Shape::K::rows(keys_tile, kk));
      wgmma_commit();
      start_dk(tile);
      wgmma_wait<1>();
      pin(dq);
      publish();
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (part[half] >= 0) store_part(static_cast<T*>(work.parts.data), part[half], dq, half, 1.f);
    } else {
      wgmma_fence();
      start_dk(tile);
      publish();
    }
  }
};

// `p` is of a turn's pairs, and `lists` and `items` of a chunk. Grid: (items, tiles of keys a block, pairs). Where the
// chunk goes jointly (parts.unless), dQ is left out.
template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(128, PartsBackwardShape<Dk, Dv>::kCtasPerSm)
    parts_backward_kernel(const AttentionBackward p, const QueryLists lists, const Pieces pieces, const Items items,
                          const Parts parts, const KeySums key_sums) {
#if NSA_ON_HOPPER
  constexpr int kRows = PartsBackwardShape<Dk, Dv>::kRows;
  extern __shared__ char shared[];
  __shared__ PartsBackwardRows<kRows> rows;
  const PartsBackwardWork work(p, lists, pieces, items, parts, key_sums);
  griddepcontrol_launch_dependents();
  if (work.keys.first >= work.keys.last) return griddepcontrol_wait();
  const bool with_dq = !(parts.unless && *parts.unless);
  PartsBackwardWarpgroup<T, Dk, Dv> warpgroup(work, shared_address(shared), rows);
  warpgroup.load_keys();
  warpgroup.begin();
  if (with_dq)
    warpgroup.template run<true>();
  else
    warpgroup.template run<false>();
  warpgroup.end();
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
