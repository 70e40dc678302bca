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

template <int Dk_, int Dv_, bool Lists>
struct DkvShape {
  static constexpr int Dk = Dk_, Dv = Dv_;
  static constexpr bool kLists = Lists;
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
  // What a team's rows of two tiles are, see Note [Rows ahead].
  struct RowsAre {
    alignas(16) float2 softmax[2][kRows];  // origin, normaliser
    alignas(16) float delta[2][kRows];
    alignas(16) int2 seen[2][kRows];  // keys
    int q_offset[2][kRows], o_offset[2][kRows];
  };
  static constexpr int kStageBytes = Q::kBytes + O::kBytes;
  static constexpr int kSharedBytes = 1024 + K::kBytes + V::kBytes + kTeams * 2 * kStageBytes;  // 1024: to align
};

// The threads that share rows: all of a CTA, or a warpgroup.
template <typename S>
struct DkvTeam {
  int number;    // among the CTA's
  int key_tile;  // the calling warpgroup's, among the team's
  int thread;    // the calling one, among the team's

  __device__ DkvTeam() {
    const int warpgroup = S::kWarpgroups > 1 ? uniform(static_cast<int>(threadIdx.x) / 128) : 0;
    number = S::kTeams > 1 ? warpgroup : 0;
    key_tile = warpgroup - number;
    thread = static_cast<int>(threadIdx.x) - number * S::kTeam;
  }
  __device__ void sync() const {
    if constexpr (S::kTeams > 1)
      bar_sync_warpgroup(1 + number);
    else
      __syncthreads();
  }
};

// Where a team's tiles are in shared memory. Tiles of rows take turns in its two stages.
template <typename S>
struct DkvPlaces {
  char* shared;
  typename S::RowsAre& rows_are;
  std::uint32_t k, v, stages;  // k, v: the CTA's

  __device__ DkvPlaces(char* memory, typename S::RowsAre& rows, int team)
      : shared(memory),
        rows_are(rows),
        k((shared_address(memory) + 1023) & ~1023u),
        v(k + S::K::kBytes),
        stages(v + S::V::kBytes + team * 2 * S::kStageBytes) {}
  __device__ std::uint32_t q(int tile) const { return stages + tile % 2 * S::kStageBytes; }
  __device__ std::uint32_t o(int tile) const { return q(tile) + S::Q::kBytes; }
  __device__ float4* stages_of_second_team() const {
    return reinterpret_cast<float4*>(shared + (v + S::V::kBytes - shared_address(shared)) + 2 * S::kStageBytes);
  }
};

// What a warpgroup is to do.
template <typename S>
struct DkvWork {
  const AttentionBackward& p;
  Heads heads;
  int b, group;
  DkvTeam<S> team;
  KeyTile keys;

  __device__ DkvWork(const AttentionBackward& problem, const QueryLists& lists, const Pieces& pieces)
      : p(problem),
        heads(p.forward.Hq / p.forward.G),
        b(blockIdx.z / p.forward.G),
        group(blockIdx.z % p.forward.G),
        keys(S::kLists ? list_tile(lists, p.forward, pieces, heads, blockIdx.x, blockIdx.y, blockIdx.z)
                       : interval_tile(p.forward, pieces, heads, blockIdx.x, blockIdx.y * S::kKeyTiles, blockIdx.z,
                                       S::kRows, S::kKeyTiles, team.key_tile)) {}
};

// All threads: K and V of the CTA's keys.
template <typename T, typename S>
__device__ inline void load_keys(const DkvWork<S>& work, const DkvPlaces<S>& places) {
  const AttentionForward& f = work.p.forward;
  const T* k = static_cast<const T*>(f.k.data) + work.b * f.k.batch + work.group * f.k.head;
  const T* v = static_cast<const T*>(f.v.data) + work.b * f.v.batch + work.group * f.v.head;
  const int first = work.keys.first - work.team.key_tile * kKeyTile, last = S::kLists ? work.keys.last : f.N;
  S::K::template load<S::kThreads>(places.k, k, static_cast<int>(f.k.token), first, last);
  S::V::template load<S::kThreads>(places.v, v, static_cast<int>(f.v.token), first, last);
}

// A team's rows, every kTeams-th tile of 64. Thread i owns row i of each and asks ahead for what it is, see Note [Rows
// ahead].
template <typename T, typename S>
class DkvRows {
 public:
  __device__ DkvRows(const DkvWork<S>& all, const DkvPlaces<S>& addresses, const QueryLists& lists,
                     const Pieces& pieces)
      : work(all),
        places(addresses),
        f(all.p.forward),
        order{all.heads,
              S::kLists ? lists.tokens + *lists.offset(blockIdx.z, blockIdx.y / pieces.tiles_a_block, f.selection.J)
                        : nullptr,
              nullptr, all.keys.row_begin, all.keys.row_end},
        interval(f),
        count((max(0, all.keys.row_end - all.keys.row_begin + S::kRows - 1) / S::kRows + S::kTeams - 1 -
               all.team.number) /
              S::kTeams),
        thread(all.team.thread),
        q(group_rows<T>(f.q, all.b, all.group, all.heads.h)),
        o(group_rows<T>(all.p.dout, all.b, all.group, all.heads.h)),
        q_token(static_cast<int>(f.q.token / 8)),
        q_head(static_cast<int>(f.q.head / 8)),
        o_token(static_cast<int>(all.p.dout.token / 8)),
        o_head(static_cast<int>(all.p.dout.head / 8)) {
    if (!S::kLists && count > 0) {
      const int period = interval.window ? count : max(f.S * all.heads.h / S::kRows / 16, 1);
      turn = period - all.keys.row_begin / S::kRows % period;
      if (turn >= count) turn = 0;
    }
  }
  __device__ int tiles() const { return count; }
  // All threads: the first two tiles. The first one is waited for, and the CTA's keys with it.
  __device__ void begin() {
    if (owns_row()) {
      for (int tile = 0; tile < 2; ++tile) {
        const Row row = row_of(tile);
        store_offsets(tile, row);
        store_statistics(tile, row, statistics_of(row));
      }
      soon = row_of(2);
    }
    __syncthreads();
    load(0);
    load(1);
    cp_async_wait<1>();
    fence_proxy_async();
    __syncthreads();
    if (owns_row()) store_offsets(2, soon);
  }
  __device__ void load(int tile) const {
    if (tile < count) {
      S::Q::template gather<S::kTeam>(places.q(tile), q, places.rows_are.q_offset[tile % 2], thread);
      S::O::template gather<S::kTeam>(places.o(tile), o, places.rows_are.o_offset[tile % 2], thread);
    }
    cp_async_commit();
  }
  // Of one tile, under its weights: what the rows of later ones are.
  __device__ void ask_ahead(int tile) {
    if (!owns_row()) return;
    statistics = statistics_of(soon);
    later = row_of(tile + 3);
  }
  // Of the next one, under its sums: what was asked for.
  __device__ void store_ahead(int tile) {
    if (!owns_row()) return;
    store_statistics(tile + 1, soon, statistics);
    store_offsets(tile + 2, later);
    soon = later;
  }

 private:
  const DkvWork<S>& work;
  const DkvPlaces<S>& places;
  const AttentionForward& f;
  const RowOrder order;
  const Interval interval;
  const int count, thread;     // count: tiles
  const T *const q, *const o;  // of the group
  const int q_token, q_head, o_token, o_head;
  int turn = 0;     // the tile of rows that comes first, see Note [Rows together]
  Row soon, later;  // of the tiles t+2, t+3
  RowStatistics statistics;

  __device__ bool owns_row() const { return thread < S::kRows; }
  __device__ Row row_of(int tile) const {
    if (!S::kLists) {
      if (tile >= count) return Row();
      tile += turn;
      if (tile >= count) tile -= count;
    }
    return order.row(work.keys.row_begin + (tile * S::kTeams + work.team.number) * S::kRows + thread);
  }
  __device__ RowStatistics statistics_of(const Row& row) const {
    return RowStatistics::load(f, work.p.delta, row, work.b, work.group, work.heads.h);
  }
  __device__ void store_offsets(int tile, const Row& row) const {
    places.rows_are.q_offset[tile % 2][thread] = offset_of(row, q_token, q_head);
    places.rows_are.o_offset[tile % 2][thread] = offset_of(row, o_token, o_head);
  }
  __device__ void store_statistics(int tile, const Row& row, const RowStatistics& x) const {
    places.rows_are.softmax[tile % 2][thread] = x.origin_and_normaliser();
    places.rows_are.delta[tile % 2][thread] = x.delta;
    int2 seen = {0x7fffffff, 0x7fffffff};  // beyond the end, where only the last rows of a tile are
    if (row.token >= 0)
      seen = S::kLists ? make_int2(0, row.token + 1) : make_int2(interval.begin(row.token), interval.end(row.token));
    places.rows_are.seen[tile % 2][thread] = seen;
  }
};

// A warpgroup, which has 64 keys. See Note [Scores ahead].
//
// Its arrays are variables of run(), handed to the steps: as members they keep nvcc from holding the other members in
// registers until the loops are unrolled, and at 192/128 with lists ptxas then spills.
template <typename T, typename S>
class DkvWarpgroup {
 public:
  __device__ DkvWarpgroup(const DkvWork<S>& all, const DkvPlaces<S>& addresses, DkvRows<T, S>& ahead)
      : work(all),
        places(addresses),
        rows(ahead),
        lane(threadIdx.x % 32),
        own_key(all.keys.first + static_cast<int>(threadIdx.x / 32 % 4) * 16 + lane / 4),
        factor(all.p.forward.scale * kLog2E),
        k(addresses.k + all.team.key_tile * kKeyTile * 128),
        v(addresses.v + all.team.key_tile * kKeyTile * 128) {}

  __device__ void run(float* partials) {
    SumK dk = {};
    SumV dv = {};
    Scores s, dp;
    Rounded weights, gradients;  // P and dS of one tile
    const int tiles = rows.tiles();
    if (tiles > 0) {
      rows.ask_ahead(0);
      pin(s);
      pin(dp);
      wgmma_fence();
      start_s(s, 0);
      start_dp(dp, 0);
      weigh(0, s, dp, weights, gradients, dv);
    }
    for (int tile = 1; tile < tiles; ++tile) {
      cp_async_wait<0>();
      fence_proxy_async();
      work.team.sync();  // this tile's rows are there, and the last one's statistics are used up
      pin(dv);
      pin(dk);
      pin(s);
      wgmma_fence();
      start_sums(dk, dv, weights, gradients, tile - 1);
      start_s(s, tile);
      rows.store_ahead(tile);
      wgmma_wait<1>();
      pin(dv);
      pin(dk);
      pin(dp);
      wgmma_fence();
      start_dp(dp, tile);
      work.team.sync();  // the last tile's rows are used up
      rows.load(tile + 1);
      rows.ask_ahead(tile);
      weigh(tile, s, dp, weights, gradients, dv);
    }
    cp_async_wait<0>();
    if (tiles > 0) {
      pin(dv);
      pin(dk);
      wgmma_fence();
      start_sums(dk, dv, weights, gradients, tiles - 1);
      wgmma_wait<0>();
      pin(dv);
      pin(dk);
    }
    if constexpr (S::kTeams > 1) add_teams(dk, dv);
    if (work.team.number == 0 && work.keys.first < work.keys.last)
      store_keys<T, S::Dk, S::Dv>(work.p, work.keys, work.b, work.group, own_key, dk, dv, partials);
  }

 private:
  static constexpr int kTiles = S::kRows / 8, kSteps = S::kRows / 16;
  using SumK = float[S::Dk / 8][4];
  using SumV = float[S::Dv / 8][4];
  using Scores = float[kTiles][4];
  using Rounded = std::uint32_t[kSteps][4];
  const DkvWork<S>& work;
  const DkvPlaces<S>& places;
  DkvRows<T, S>& rows;
  const int lane, own_key;
  const float factor;
  const std::uint32_t k, v;  // addresses

  __device__ void start_s(Scores& s, int tile) const {
    product_of_columns<T, S::Dk / 16>(s, typename S::K(), k, typename S::Q(), places.q(tile));
    wgmma_commit();
  }
  __device__ void start_dp(Scores& dp, int tile) const {
    product_of_columns<T, S::Dv / 16>(dp, typename S::V(), v, typename S::O(), places.o(tile));
    wgmma_commit();
  }
  __device__ void start_dv(SumV& dv, const Rounded& weights, int tile) const {
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) Wgmma<T, S::Dv>::values(dv, weights[kk], S::O::rows(places.o(tile), kk));
  }
  __device__ void start_sums(SumK& dk, SumV& dv, const Rounded& weights, const Rounded& gradients, int tile) const {
    if constexpr (!S::kDvUnderDs) start_dv(dv, weights, tile);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) Wgmma<T, S::Dk>::values(dk, gradients[kk], S::Q::rows(places.q(tile), kk));
    wgmma_commit();
  }
  // From S and dP, which are on their way, to P and dS.
  __device__ void weigh(int tile, Scores& s, Scores& dp, Rounded& weights, Rounded& gradients, SumV& dv) const {
    const int stage = tile % 2;
    const typename S::RowsAre& are = places.rows_are;
    // Both ends of the rows' intervals rise along the tile: its first and last row tell whether all see all keys.
    const bool masked =
        (!S::kLists && work.keys.first < are.seen[stage][S::kRows - 1].x) || work.keys.last > are.seen[stage][0].y;
    wgmma_wait<1>();
    pin(s);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float4 softmax = *reinterpret_cast<const float4*>(&are.softmax[stage][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[n][i] = exp2_fast(fmaf(s[n][i], factor, i % 2 ? -softmax.z : -softmax.x)) * (i % 2 ? softmax.w : softmax.y);
    }
    if (masked) mask(stage, s);
    if constexpr (!S::kRoundLate) round(weights, s);
    if constexpr (S::kDvUnderDs) {
      pin(dv);
      wgmma_fence();
      start_dv(dv, weights, tile);
      wgmma_commit();
    }
    wgmma_wait<S::kDvUnderDs ? 1 : 0>();
    pin(dp);
    if constexpr (S::kRoundLate) round(weights, s);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(&are.delta[stage][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = weight(s, weights, n, i) * (dp[n][i] - (i % 2 ? delta.y : delta.x));
    }
    // Once more: a row that the keys do not concern may hold a NaN in dO, and 0 * NaN is one.
    if (masked) mask(stage, dp);
    round(gradients, dp);
    if constexpr (S::kDvUnderDs) {
      wgmma_wait<0>();
      pin(dv);
    }
  }
  __device__ void mask(int stage, Scores& c) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int4 seen = *reinterpret_cast<const int4*>(&places.rows_are.seen[stage][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = own_key + i / 2 * 8;
        if (i % 2 ? key < seen.z || key >= seen.w : key < seen.x || key >= seen.y) c[n][i] = 0.f;
      }
    }
  }
  __device__ static void round(Rounded& to, const Scores& c) {
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) as_a<T>(to[kk], c, kk);
  }
  // Of P for dS: as it goes into dV where there are no registers for S besides.
  __device__ static float weight(const Scores& s, const Rounded& weights, int n, int i) {
    if constexpr (!S::kDvUnderDs) return s[n][i];
    const float2 pair = unpack<T>(weights[n / 2][n % 2 * 2 + i / 2]);
    return i % 2 ? pair.y : pair.x;
  }

  // The second team's sums to the first one's, through the second one's stages.
  __device__ void add_teams(SumK& dk, SumV& dv) const {
    float4* const others = places.stages_of_second_team() + work.team.thread;
    work.team.sync();  // all have used them up; only the second team's matter, but racecheck counts who syncs how often
    if (work.team.number == 1) {
      put(others, dk);
      put(others + S::Dk / 8 * 128, dv);
    }
    __syncthreads();
    if (work.team.number == 0) {
      add(dk, others);
      add(dv, others + S::Dk / 8 * 128);
    }
  }
  template <int N>
  __device__ static void put(float4* to, const float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n) to[n * 128] = make_float4(c[n][0], c[n][1], c[n][2], c[n][3]);
  }
  template <int N>
  __device__ static void add(float (&c)[N][4], const float4* from) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float4 x = from[n * 128];
      c[n][0] += x.x, c[n][1] += x.y, c[n][2] += x.z, c[n][3] += x.w;
    }
  }
};

template <typename T, int Dk, int Dv, bool Lists>
__global__ void __launch_bounds__(DkvShape<Dk, Dv, Lists>::kThreads, DkvShape<Dk, Dv, Lists>::kCtasPerSm)
    dkv_kernel(const AttentionBackward p, const QueryLists lists, const Pieces pieces, float* partials) {
#if NSA_ON_HOPPER
  using S = DkvShape<Dk, Dv, Lists>;
  extern __shared__ char shared[];
  __shared__ typename S::RowsAre rows_are[S::kTeams];
  const DkvWork<S> work(p, lists, pieces);
  if (Lists && (work.keys.first >= work.keys.last || static_cast<int>(blockIdx.x) >= work.keys.pieces)) return;
  const DkvPlaces<S> places(shared, rows_are[work.team.number], work.team.number);
  load_keys<T>(work, places);
  DkvRows<T, S> rows(work, places, lists, pieces);
  rows.begin();
  DkvWarpgroup<T, S>(work, places, rows).run(partials);
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
