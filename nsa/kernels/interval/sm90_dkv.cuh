// dK and dV of tiles of 64 keys by wgmma; what interval/sm80_dkv.cuh does, and cut into pieces in the same way. For
// widths from 128 on: 64 has registers for sm90_dkv_narrow.cuh.
//
//   two warpgroups per SM: while one computes weights the other one's products run. A CTA of each, or,
//   where shared memory has no room for two (Dk 192), one CTA of both: over intervals they are one team that shares
//   the rows, with a tile of keys each; in a list they are two that share the keys, walk through every other 64 rows
//   each, and add what they have at the end
//   shared memory: K [keys][Dk], V [keys][Dv]; of a team, two stages of Q, dO [64 rows (token, head)]
//   S^T = K Q^T and dP^T = V dO^T from shared memory; dV += P^T dO and dK += dS^T Q with the left operand in registers
//
// Note [Scores ahead]
// Of a tile alone the products S, dP, dV, dK and what lies between them are a chain in which the tensor cores mostly
// wait. So the next tile's S stands in their queue right behind this tile's sums, and its dP as soon as these have
// freed their registers: the barrier, the gathering of further rows and their statistics pass under them. No product is
// on its way where the loop begins anew: the assembler would otherwise let none of them run beside another.
//
// Note [Rows together]
// Every row of queries goes to many tiles of keys, and comes from memory each time unless the CTAs that
// want it do so at about the same time. Neighbouring tiles of keys begin with different rows. So over intervals a CTA
// begins in the middle, with the first of its tiles of rows whose number is a multiple of `period`, and goes round: all
// that start together then stand at numbers equal modulo `period`. A window's tiles of keys are all seen by as many
// rows, which are its period; the compressed branch's is a sixteenth of the sequence.
#pragma once

#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/pieces.cuh"
#include "nsa/kernels/device/rows.cuh"
#include "nsa/kernels/device/slab.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"

namespace nsa::kernels::hopper {

template <int Dk, int Dv, bool Lists>
struct DkvShape {
  static constexpr int kWarpgroups = Dk > 128 ? 2 : 1, kThreads = kWarpgroups * 128, kCtasPerSm = 2 / kWarpgroups;
  static constexpr int kTeams = Lists ? kWarpgroups : 1, kTeam = kThreads / kTeams;  // threads
  static constexpr int kKeyTiles = kWarpgroups / kTeams;
  static constexpr int kRows = 64;
  // Wider heads have no registers for both sums and the next scores on their way: ptxas would serialise them all.
  // Lists, whose pace memory sets, are faster so all the same (b in ../history.md, 6a9501c: 13.1 ms for 15.1).
  static constexpr bool kDvUnderDs = Dk > 128 && !Lists, kRoundLate = Dk > 128 && Lists;
  using K = Slab<kKeyTiles * kKeyTile, Dk>;
  using V = Slab<kKeyTiles * kKeyTile, Dv>;
  using Q = Slab<kRows, Dk>;
  using O = Slab<kRows, Dv>;
  static constexpr int kStageBytes = Q::kBytes + O::kBytes;
  static constexpr int kSharedBytes = 1024 + K::kBytes + V::kBytes + kTeams * 2 * kStageBytes;  // 1024: to align
};

template <typename T, int Dk, int Dv, bool Lists>
__global__ void __launch_bounds__(DkvShape<Dk, Dv, Lists>::kThreads, DkvShape<Dk, Dv, Lists>::kCtasPerSm)
    dkv_kernel(const AttentionBackward p, const QueryLists lists, const Pieces pieces, float* partials) {
#if NSA_ON_HOPPER
  using Shape = DkvShape<Dk, Dv, Lists>;
  constexpr int kRows = Shape::kRows, kTiles = kRows / 8, kTeams = Shape::kTeams, kTeam = Shape::kTeam;
  extern __shared__ char shared[];
  // Of two tiles' rows of every team, see Note [Rows ahead].
  __shared__ __align__(16) float2 row_softmax[kTeams][2][kRows];
  __shared__ __align__(16) float row_delta[kTeams][2][kRows];
  __shared__ __align__(16) int2 row_interval[kTeams][2][kRows];
  __shared__ int q_offset[kTeams][2][kRows], o_offset[kTeams][2][kRows];
  const AttentionForward& f = p.forward;
  const Heads heads(f.Hq / f.G);
  const int b = blockIdx.z / f.G, group = blockIdx.z % f.G;
  const int warpgroup = Shape::kWarpgroups > 1 ? uniform(static_cast<int>(threadIdx.x) / 128) : 0;
  const int team = kTeams > 1 ? warpgroup : 0, key_tile = warpgroup - team;
  const int thread = static_cast<int>(threadIdx.x) - team * kTeam;  // of the team
  const auto sync_team = [&] {
    if constexpr (kTeams > 1)
      bar_sync_warpgroup(1 + team);
    else
      __syncthreads();
  };
  const KeyTile keys = Lists ? list_tile(lists, f, pieces, heads, blockIdx.x, blockIdx.y, blockIdx.z)
                             : interval_tile(f, pieces, heads, blockIdx.x, blockIdx.y * Shape::kKeyTiles, blockIdx.z,
                                             kRows, Shape::kKeyTiles, key_tile);
  if (Lists && (keys.first >= keys.last || static_cast<int>(blockIdx.x) >= keys.pieces)) return;
  const std::uint32_t k_tile = (shared_address(shared) + 1023) & ~1023u, v_tile = k_tile + Shape::K::kBytes;
  const std::uint32_t stages = v_tile + Shape::V::kBytes + team * 2 * Shape::kStageBytes;
  const auto q_tile = [&](int tile) { return stages + tile % 2 * Shape::kStageBytes; };
  const auto o_tile = [&](int tile) { return q_tile(tile) + Shape::Q::kBytes; };

  const T* k = static_cast<const T*>(f.k.data) + b * f.k.batch + group * f.k.head;
  const T* v = static_cast<const T*>(f.v.data) + b * f.v.batch + group * f.v.head;
  const int first_key = keys.first - key_tile * kKeyTile, last_key = Lists ? keys.last : f.N;  // of the block
  Shape::K::template load<Shape::kThreads>(k_tile, k, static_cast<int>(f.k.token), first_key, last_key);
  Shape::V::template load<Shape::kThreads>(v_tile, v, static_cast<int>(f.v.token), first_key, last_key);

  const int list = Lists ? *lists.offset(blockIdx.z, blockIdx.y / pieces.tiles_a_block, f.selection.J) : 0;
  const RowOrder order{heads, Lists ? lists.tokens + list : nullptr, nullptr, keys.row_begin, keys.row_end};
  const Interval interval(f);
  // The team's: every kTeams-th.
  const int tiles = (max(0, keys.row_end - keys.row_begin + kRows - 1) / kRows + kTeams - 1 - team) / kTeams;
  const T* q = group_rows<T>(f.q, b, group, heads.h);
  const T* dout = group_rows<T>(p.dout, b, group, heads.h);
  const int q_token = static_cast<int>(f.q.token / 8), q_head = static_cast<int>(f.q.head / 8);
  const int o_token = static_cast<int>(p.dout.token / 8), o_head = static_cast<int>(p.dout.head / 8);
  const bool owns_row = thread < kRows;
  int turn = 0;  // the tile of rows that comes first, see Note [Rows together]
  if (!Lists && tiles > 0) {
    const int period = interval.window ? tiles : max(f.S * heads.h / kRows / 16, 1);
    turn = period - keys.row_begin / kRows % period;
    if (turn >= tiles) turn = 0;
  }
  const auto row_of = [&](int tile) {
    if (!Lists) {
      if (tile >= tiles) return Row();
      tile += turn;
      if (tile >= tiles) tile -= tiles;
    }
    return order.row(keys.row_begin + (tile * kTeams + team) * kRows + thread);
  };
  const auto store_offsets = [&](int tile, const Row& row) {
    q_offset[team][tile % 2][thread] = offset_of(row, q_token, q_head);
    o_offset[team][tile % 2][thread] = offset_of(row, o_token, o_head);
  };
  const auto statistics_of = [&](const Row& row) { return RowStatistics::load(f, p.delta, row, b, group, heads.h); };
  const auto store_statistics = [&](int tile, const Row& row, const RowStatistics& x) {
    row_softmax[team][tile % 2][thread] = x.origin_and_normaliser();
    row_delta[team][tile % 2][thread] = x.delta;
    int2 seen = {0x7fffffff, 0x7fffffff};  // beyond the end, where only the last rows of a tile are
    if (row.token >= 0)
      seen = Lists ? make_int2(0, row.token + 1) : make_int2(interval.begin(row.token), interval.end(row.token));
    row_interval[team][tile % 2][thread] = seen;
  };
  const auto load_rows = [&](int tile) {
    if (tile < tiles) {
      Shape::Q::template gather<kTeam>(q_tile(tile), q, q_offset[team][tile % 2], thread);
      Shape::O::template gather<kTeam>(o_tile(tile), dout, o_offset[team][tile % 2], thread);
    }
    cp_async_commit();
  };
  Row soon, later;  // of the tiles t+2, t+3
  RowStatistics statistics;
  if (owns_row) {
    for (int tile = 0; tile < 2; ++tile) {
      const Row row = row_of(tile);
      store_offsets(tile, row);
      store_statistics(tile, row, statistics_of(row));
    }
    soon = row_of(2);
  }
  __syncthreads();
  load_rows(0);
  load_rows(1);
  cp_async_wait<1>();
  fence_proxy_async();
  __syncthreads();
  if (owns_row) store_offsets(2, soon);

  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int own_key = keys.first + warp * 16 + lane / 4;
  const float factor = f.scale * kLog2E;
  float dk[Dk / 8][4] = {}, dv[Dv / 8][4] = {}, s[kTiles][4], dp[kTiles][4];
  std::uint32_t weights[kRows / 16][4], gradients[kRows / 16][4];  // P and dS of one tile
  const std::uint32_t own_k = k_tile + key_tile * kKeyTile * 128, own_v = v_tile + key_tile * kKeyTile * 128;
  const auto mask = [&](int stage, float(&c)[kTiles][4]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int4 seen = *reinterpret_cast<const int4*>(&row_interval[team][stage][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = own_key + i / 2 * 8;
        if (i % 2 ? key < seen.z || key >= seen.w : key < seen.x || key >= seen.y) c[n][i] = 0.f;
      }
    }
  };
  // See Note [Scores ahead].
  const auto start_s = [&](int tile) {
    product_of_columns<T, Dk / 16>(s, typename Shape::K(), own_k, typename Shape::Q(), q_tile(tile));
    wgmma_commit();
  };
  const auto start_dp = [&](int tile) {
    product_of_columns<T, Dv / 16>(dp, typename Shape::V(), own_v, typename Shape::O(), o_tile(tile));
    wgmma_commit();
  };
  const auto start_dv = [&](int tile) {
#pragma unroll
    for (int kk = 0; kk < kRows / 16; ++kk) Wgmma<T, Dv>::values(dv, weights[kk], Shape::O::rows(o_tile(tile), kk));
  };
  const auto start_sums = [&](int tile) {
    if constexpr (!Shape::kDvUnderDs) start_dv(tile);
#pragma unroll
    for (int kk = 0; kk < kRows / 16; ++kk) Wgmma<T, Dk>::values(dk, gradients[kk], Shape::Q::rows(q_tile(tile), kk));
    wgmma_commit();
  };
  // Of P for dS: as it goes into dV where there are no registers for S besides.
  const auto weight = [&](int n, int i) {
    if constexpr (!Shape::kDvUnderDs) return s[n][i];
    const float2 pair = unpack<T>(weights[n / 2][n % 2 * 2 + i / 2]);
    return i % 2 ? pair.y : pair.x;
  };
  // From S and dP, which are on their way, to P and dS.
  const auto weigh = [&](int tile) {
    const int stage = tile % 2;
    // Both ends of the rows' intervals rise along the tile: its first and last row tell whether all see all keys.
    const bool masked =
        (!Lists && keys.first < row_interval[team][stage][kRows - 1].x) || keys.last > row_interval[team][stage][0].y;
    wgmma_wait<1>();
    pin(s);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float4 softmax = *reinterpret_cast<const float4*>(&row_softmax[team][stage][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[n][i] = exp2_fast(fmaf(s[n][i], factor, i % 2 ? -softmax.z : -softmax.x)) * (i % 2 ? softmax.w : softmax.y);
    }
    if (masked) mask(stage, s);
    const auto round_weights = [&] {
#pragma unroll
      for (int kk = 0; kk < kRows / 16; ++kk) as_a<T>(weights[kk], s, kk);
    };
    if constexpr (!Shape::kRoundLate) round_weights();
    if constexpr (Shape::kDvUnderDs) {
      pin(dv);
      wgmma_fence();
      start_dv(tile);
      wgmma_commit();
    }
    wgmma_wait<Shape::kDvUnderDs ? 1 : 0>();
    pin(dp);
    if constexpr (Shape::kRoundLate) round_weights();
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(&row_delta[team][stage][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = weight(n, i) * (dp[n][i] - (i % 2 ? delta.y : delta.x));
    }
    // Once more: a row that the keys do not concern may hold a NaN in dO, and 0 * NaN is one.
    if (masked) mask(stage, dp);
#pragma unroll
    for (int kk = 0; kk < kRows / 16; ++kk) as_a<T>(gradients[kk], dp, kk);
    if constexpr (Shape::kDvUnderDs) {
      wgmma_wait<0>();
      pin(dv);
    }
  };
  const auto ask_ahead = [&](int tile) {
    if (!owns_row) return;
    statistics = statistics_of(soon);
    later = row_of(tile + 3);
  };
  if (tiles > 0) {
    ask_ahead(0);
    pin(s);
    pin(dp);
    wgmma_fence();
    start_s(0);
    start_dp(0);
    weigh(0);
  }
  for (int tile = 1; tile < tiles; ++tile) {
    cp_async_wait<0>();
    fence_proxy_async();
    sync_team();  // this tile's rows are there, and the last one's statistics are used up
    pin(dv);
    pin(dk);
    pin(s);
    wgmma_fence();
    start_sums(tile - 1);
    start_s(tile);
    if (owns_row) {
      store_statistics(tile + 1, soon, statistics);
      store_offsets(tile + 2, later);
      soon = later;
    }
    wgmma_wait<1>();
    pin(dv);
    pin(dk);
    pin(dp);
    wgmma_fence();
    start_dp(tile);
    sync_team();  // the last tile's rows are used up
    load_rows(tile + 1);
    ask_ahead(tile);
    weigh(tile);
  }
  cp_async_wait<0>();
  if (tiles > 0) {
    pin(dv);
    pin(dk);
    wgmma_fence();
    start_sums(tiles - 1);
    wgmma_wait<0>();
    pin(dv);
    pin(dk);
  }

  if constexpr (kTeams > 1) {
    // Through the second one's stages.
    float4* const others = reinterpret_cast<float4*>(shared + (v_tile + Shape::V::kBytes - shared_address(shared)) +
                                                     2 * Shape::kStageBytes) +
                           thread;
    sync_team();  // all have used them up; only the second team's matter, but racecheck counts who syncs how often
    if (team == 1) {
#pragma unroll
      for (int n = 0; n < Dk / 8; ++n) others[n * 128] = make_float4(dk[n][0], dk[n][1], dk[n][2], dk[n][3]);
#pragma unroll
      for (int n = 0; n < Dv / 8; ++n) others[(Dk / 8 + n) * 128] = make_float4(dv[n][0], dv[n][1], dv[n][2], dv[n][3]);
    }
    __syncthreads();
    const auto add = [&]<int N>(float(&c)[N][4], const float4* from) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float4 x = from[n * 128];
        c[n][0] += x.x, c[n][1] += x.y, c[n][2] += x.z, c[n][3] += x.w;
      }
    };
    if (team == 0) {
      add(dk, others);
      add(dv, others + Dk / 8 * 128);
    }
  }
  if (team == 0 && keys.first < keys.last) store_keys<T, Dk, Dv>(p, keys, b, group, own_key, dk, dv, partials);
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
