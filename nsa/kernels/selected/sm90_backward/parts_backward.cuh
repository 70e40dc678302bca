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

// `p` is of a turn's pairs, and `lists` and `items` of a chunk. Grid: (items, tiles of keys a block, pairs). Where the
// chunk goes jointly (parts.unless), dQ is left out.
template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(128, PartsBackwardShape<Dk, Dv>::kCtasPerSm)
    parts_backward_kernel(const AttentionBackward p, const QueryLists lists, const Pieces pieces, const Items items,
                          const Parts parts, const KeySums key_sums) {
#if NSA_ON_HOPPER
  using Shape = PartsBackwardShape<Dk, Dv>;
  constexpr int kRows = Shape::kRows, kTiles = kRows / 8;
  extern __shared__ char shared[];
  // Of two tiles' rows, and of four's what their tokens say.
  __shared__ __align__(16) float2 row_softmax[2][kRows];
  __shared__ __align__(16) float row_delta[2][kRows];
  __shared__ __align__(16) int row_end[4][kRows];       // one past the last key that the row sees
  __shared__ int row_part[4][kRows], row_at[4][kRows];  // h * part + head, head * S + token, or -1
  __shared__ int q_offset[4][kRows], o_offset[4][kRows];
  __shared__ float* own_sums;  // where the results go: known early, wanted late
  const AttentionForward& f = p.forward;
  const Heads heads(f.Hq / f.G);
  const int pair = blockIdx.z, tile_part = blockIdx.y;
  const Item item = items.data[static_cast<std::int64_t>(pair) * items.capacity + blockIdx.x];
  const int b = pair / f.G, group = pair % f.G, rows = item.tokens * heads.h;
  const struct {
    int first, last;
  } keys{item.first + tile_part * kKeyTile, min(item.first + (tile_part + 1) * kKeyTile, item.last)};
  griddepcontrol_launch_dependents();
  if (keys.first >= keys.last) return griddepcontrol_wait();
  const bool with_dq = !(parts.unless && *parts.unless);

  const std::uint32_t k_tile = (shared_address(shared) + 1023) & ~1023u, v_tile = k_tile + Shape::K::kBytes;
  const std::uint32_t ds_tile = v_tile + Shape::V::kBytes;
  const auto q_tile = [&](int stage) { return ds_tile + Shape::Ds::kBytes + stage * Shape::kStageBytes; };
  const auto o_tile = [&](int stage) { return q_tile(stage) + Shape::Q::kBytes; };
  const T* k = static_cast<const T*>(f.k.data) + b * f.k.batch + group * f.k.head;
  const T* v = static_cast<const T*>(f.v.data) + b * f.v.batch + group * f.v.head;
  Shape::K::template load<Shape::kThreads>(k_tile, k, static_cast<int>(f.k.token), keys.first, keys.last);
  Shape::V::template load<Shape::kThreads>(v_tile, v, static_cast<int>(f.v.token), keys.first, keys.last);

  const int tiles = (rows + kRows - 1) / kRows;
  const T* q = group_rows<T>(f.q, b, group, heads.h);
  const T* dout = group_rows<T>(p.dout, b, group, heads.h);
  const int q_token = static_cast<int>(f.q.token / 8), q_head = static_cast<int>(f.q.head / 8);
  const int o_token = static_cast<int>(p.dout.token / 8), o_head = static_cast<int>(p.dout.head / 8);
  // Half of the threads ask for statistics, the other half for tokens: see Note [Rows ahead]. Both in the same
  // registers.
  const bool asks_statistics = threadIdx.x < kRows;
  const int own_place = static_cast<int>(threadIdx.x) % kRows;
  struct Asked {
    float2 softmax;
    float delta;
  };
  struct Named {
    int token, place, head;
  };
  union {
    Asked statistics;
    Named row;
  } ahead;
  const auto ask_row = [&](int tile) {
    const int i = tile * kRows + own_place;
    ahead.row.token = -1;
    if (i >= rows) return;
    const int entry = heads.token(i);
    ahead.row = {lists.tokens[item.entry + entry], lists.places[item.entry + entry], heads.head(i, entry)};
  };
  const auto store_row = [&](int tile) {
    const auto [token, place, head] = ahead.row;
    const bool exists = token >= 0;
    row_end[tile % 4][own_place] = exists ? min(token + 1, keys.last) : keys.last;
    row_at[tile % 4][own_place] = exists ? head * f.S + token : -1;
    row_part[tile % 4][own_place] =
        exists ? parts.at(pair, token, place * pieces.tiles_a_block + tile_part) * heads.h + head : -1;
    q_offset[tile % 4][own_place] = exists ? token * q_token + head * q_head : -1;
    o_offset[tile % 4][own_place] = exists ? token * o_token + head * o_head : -1;
  };
  const std::int64_t group_statistics = (static_cast<std::int64_t>(b) * f.Hq + group * heads.h) * f.S;
  const auto ask_statistics = [&](int tile) {
    const int at = row_at[tile % 4][own_place];
    ahead.statistics = {{0.f, 0.f}, 0.f};
    if (at < 0) return;
    ahead.statistics = {(reinterpret_cast<const float2*>(f.stats) + group_statistics)[at],
                        (p.delta + group_statistics)[at]};
  };
  const auto store_statistics = [&](int tile) {
    const auto [softmax, delta] = ahead.statistics;
    row_softmax[tile % 2][own_place] = RowStatistics{softmax, delta}.origin_and_normaliser();
    row_delta[tile % 2][own_place] = delta;
  };
  // What shared memory says of a tile is asked for before what must be waited for anyway.
  struct Offsets {
    int q[Shape::kOwnRows], o[Shape::kOwnRows];
  };
  const auto offsets_of = [&](int tile) {
    Offsets x;
#pragma unroll
    for (int i = 0; i < Shape::kOwnRows; ++i) {
      const int row = Shape::Q::template own_row<Shape::kThreads>(i);
      x.q[i] = q_offset[tile % 4][row], x.o[i] = o_offset[tile % 4][row];
    }
    return x;
  };
  const auto load_rows = [&](int tile, const Offsets& x) {
    if (tile < tiles) {
      Shape::Q::template gather_own<Shape::kThreads>(q_tile(tile % 2), q, x.q);
      Shape::O::template gather_own<Shape::kThreads>(o_tile(tile % 2), dout, x.o);
    }
    cp_async_commit();
  };
  const auto ask_ahead = [&](int tile) {
    if (asks_statistics)
      ask_statistics(tile + 2);
    else
      ask_row(tile + 3);
  };
  const auto store_asked = [&](int tile) {
    if (asks_statistics)
      store_statistics(tile + 2);
    else
      store_row(tile + 3);
  };
  for (int tile = asks_statistics ? 0 : 1; tile < 3; tile += 2) {
    ask_row(tile);
    store_row(tile);
  }
  __syncthreads();
  ask_statistics(asks_statistics ? 0 : 1);
  load_rows(0, offsets_of(0));
  load_rows(1, offsets_of(1));
  store_statistics(asks_statistics ? 0 : 1);
  // See Note [Sums over chunks] (key_sums.cuh).
  std::int64_t slot = (static_cast<std::int64_t>(pair) * f.selection.J + item.block) * pieces.tiles_a_block + tile_part;
  if (item.piece > 0)
    slot = second_slot(key_sums, pieces, pair,
                       item.entry - item.piece * pieces.tokens - *lists.offset(pair, 0, f.selection.J), tile_part) +
           (item.piece - 1) * pieces.tiles_a_block;
  float* const sums = (item.piece == 0 ? key_sums.sums : key_sums.partials) + slot * kPartial<Dk, Dv>;
  if (threadIdx.x == 0) own_sums = sums;
  float dk[Dk / 8][4] = {}, dv[Dv / 8][4] = {};
  griddepcontrol_wait();
  if (item.piece == 0) {
    load_sums(dk, sums);
    load_sums(dv, sums + kKeyTile * Dk);
  }

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own_row = warp * 16 + lane / 4;
  const float factor = f.scale * kLog2E;
  std::uint32_t weights[kRows / 16][4];  // P^T of one tile
  const auto mask = [&](int tile, float(&c)[kTiles][4]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int2 end = *reinterpret_cast<const int2*>(&row_end[tile % 4][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (keys.first + own_row + i / 2 * 8 >= (i % 2 ? end.y : end.x)) c[n][i] = 0.f;
    }
  };
  // From a tile's rows to P^T and dS^T. `meanwhile` passes under S^T.
  const auto weigh = [&](int tile, auto&& meanwhile) {
    const int stage = tile % 2;
    float s[kTiles][4], dp[kTiles][4];
    // The list ascends: later rows see every key.
    const bool masked = row_end[tile % 4][0] < keys.first + kKeyTile;
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
      const float4 softmax = *reinterpret_cast<const float4*>(&row_softmax[stage][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[n][i] = exp2_fast(fmaf(s[n][i], factor, i % 2 ? -softmax.z : -softmax.x)) * (i % 2 ? softmax.w : softmax.y);
    }
    if (masked) mask(tile, s);
#pragma unroll
    for (int kk = 0; kk < kRows / 16; ++kk) as_a<T>(weights[kk], s, kk);
    wgmma_wait<0>();
    pin(dp);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(&row_delta[stage][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = s[n][i] * (dp[n][i] - (i % 2 ? delta.y : delta.x));
    }
    // Once more: a row that the keys do not concern may hold a NaN in dO, and 0 * NaN is one.
    if (masked) mask(tile, dp);
    // 16 rows further is two chunks further: of the swizzled place it changes two bits.
    const std::uint32_t place = Shape::Ds::at(anew(ds_tile), warp * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int kk = 0; kk < kRows / 16; ++kk) {
      std::uint32_t gradients[4];
      as_a<T>(gradients, dp, kk);
      stmatrix(place ^ static_cast<std::uint32_t>(kk * 32), gradients);
    }
  };
  const auto start_dk = [&](int tile) {
    const std::uint32_t ds = anew(ds_tile);
#pragma unroll
    for (int kk = 0; kk < kRows / 16; ++kk)
      Wgmma<T, Dk>::template values<1, false>(dk, Shape::Ds::columns(ds, kk), Shape::Q::rows(q_tile(tile % 2), kk));
    wgmma_commit();
  };
  const auto start_dv = [&](int tile) {
#pragma unroll
    for (int kk = 0; kk < kRows / 16; ++kk) Wgmma<T, Dv>::values(dv, weights[kk], Shape::O::rows(o_tile(tile % 2), kk));
    wgmma_commit();
  };
  // dQ's part of a tile, stored from the registers, and dK's product begins. `publish` comes before the stores: the
  // fence would wait for them.
  const auto make_dq = [&]<bool WithDq>(int tile, const int(&part)[2], auto&& publish) {
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
        if (part[half] >= 0) store_part(static_cast<T*>(parts.data), part[half], dq, half, 1.f);
    } else {
      wgmma_fence();
      start_dk(tile);
      publish();
    }
  };
  const auto run = [&]<bool WithDq>() {
    ask_ahead(0);
    cp_async_wait<1>();
    fence_proxy_async();
    __syncthreads();
    weigh(0, [] {});
    int part[2];
    const auto ask_parts = [&](int tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) part[half] = row_part[tile % 4][own_row + 8 * half];
    };
    for (int tile = 1; tile < tiles; ++tile) {
      ask_parts(tile - 1);
      fence_proxy_async();
      __syncthreads();  // the last tile's dS^T is there
      make_dq.template operator()<WithDq>(tile - 1, part, [] {
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
    make_dq.template operator()<WithDq>(tiles - 1, part, [] {});
    pin(dv);
    wgmma_fence();
    start_dv(tiles - 1);
    wgmma_wait<0>();
    pin(dk);
    pin(dv);
  };
  if (with_dq)
    run.template operator()<true>();
  else
    run.template operator()<false>();
  cp_async_wait<0>();
  store_sums(dk, own_sums);
  store_sums(dv, own_sums + kKeyTile * Dk);
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
