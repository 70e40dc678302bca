// Queries' parts (parts.cuh) put together: here dQ, in join_forward.cuh o and statistics.
//
// Nothing but memory's rate should count here. A row's lanes find out together which parts it has, and then ask for
// many parts' values at once. No row waits for another warp's.
#pragma once

#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/device/heads.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/selected/sm90_split/part_stream.cuh"
#include "nsa/kernels/selected/sm90_split/parts.cuh"

namespace nsa::kernels::hopper {

// Which parts a token has: those of a place of its row of the table whose first key is not after the token, and of
// whose number no earlier place has the same.
struct TokenParts {
  const int* numbers;  // its row
  int position;        // in its document
  int count, l_sel;    // parts of a token; tokens of a block
  Divisor by_tiles;    // parts of a block of keys

  // The parts from `base` on, a bit each, by `Lanes` lanes of a warp of which this is the lane-th and
  // `first_lane` the first.
  template <int Lanes, int Parts>
  __device__ unsigned find(int base, int lane, int first_lane) const {
    constexpr int kOwn = Parts / Lanes;
    int number[kOwn], place[kOwn];
    bool exists[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int part = base + k * Lanes + lane;
      place[k] = by_tiles.quotient(part);
      number[k] = part < count ? numbers[place[k]] : -1;
      exists[k] = number[k] >= 0 &&
                  static_cast<std::int64_t>(number[k]) * l_sel + (part - place[k] * by_tiles.n) * kKeyTile <= position;
    }
    const int earlier = by_tiles.quotient(base);
#pragma unroll 1
    for (int i = 0; i < earlier; ++i)
#pragma unroll
      for (int k = 0; k < kOwn; ++k) exists[k] &= numbers[i] != number[k];
    unsigned found = 0;
#pragma unroll
    for (int i = 0; i < Parts; ++i) {
      const int other = __shfl_sync(0xffffffffu, number[i / Lanes], first_lane + i % Lanes);
      const int other_place = by_tiles.quotient(base + i);
#pragma unroll
      for (int k = 0; k < kOwn; ++k) exists[k] &= other != number[k] || other_place >= place[k];
    }
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      found |= (__ballot_sync(0xffffffffu, exists[k]) >> first_lane & ((1u << Lanes) - 1)) << k * Lanes;
    return found;
  }
};

// What a thread of join_parts finds its row with: made on the host, where divisions cost nothing.
struct JoinRows {
  Divisor by_heads, by_tokens, by_tiles;  // heads of a group, tokens of the chunk, parts of a block of keys
  int count;                              // (pair, token, head)

  JoinRows(int h, const Parts& parts, const Pieces& pieces)
      : by_heads(h), by_tokens(parts.count), by_tiles(pieces.tiles_a_block), count(parts.pairs * parts.count * h) {}
};

template <int D>
struct JoinShape {
  static constexpr int kThreads = 128, kCtasPerSm = D > 128 ? 3 : 4;  // per SM, as the registers allow
  static constexpr int kLanes = D == 128 ? 16 : 8;                    // of a row
  static constexpr int kChunks = D / 8 / kLanes;                      // that a lane holds of a row, each of 16 bytes
  static constexpr int kParts = D > 128 ? 8 : 16;                     // asked for at once, as the registers allow
  static constexpr int kRows = kThreads / kLanes;                     // of a CTA
};

// dQ of some queries from their parts, in the parts' order. Once: a query has no more than kParts parts, so that
// nothing is looked at again. By a CTA, number `cta` of as many as the rows need.
template <typename T, int D, bool Once>
__device__ inline void join_parts(const AttentionBackward& backward, const Parts& parts, const JoinRows& rows,
                                  int cta) {
  if (parts.unless && *parts.unless) return;
  const AttentionForward& p = backward.forward;
  const Rows& dq = backward.dq;
  using Shape = JoinShape<D>;
  constexpr int kLanes = Shape::kLanes, kChunks = Shape::kChunks, kParts = Shape::kParts;
  const int lane = threadIdx.x % kLanes, first_lane = static_cast<int>(threadIdx.x) % 32 - lane;  // of the warp
  const int wanted = cta * Shape::kRows + static_cast<int>(threadIdx.x) / kLanes;
  const int row = min(wanted, rows.count - 1), h = rows.by_heads.n, n = parts.per_token;
  const int query = rows.by_heads.quotient(row), head = row - query * h, turn_pair = rows.by_tokens.quotient(query);
  const int t = parts.first + query - turn_pair * parts.count;
  const int pair = parts.first_pair + turn_pair, b = pair / p.G, group = pair % p.G;
  const TokenParts own{p.blocks + ((static_cast<std::int64_t>(b) * p.S + t) * parts.row_groups + group) * p.geometry.n,
                       t - (p.packed.first_token ? p.packed.first_token[t] : 0), n, p.geometry.l_sel, rows.by_tiles};
  const T* data =
      static_cast<const T*>(parts.data) + (static_cast<std::int64_t>(parts.at(pair, t, 0)) * h + head) * D + lane * 8;
  uint4* const to =
      reinterpret_cast<uint4*>(static_cast<T*>(dq.data) + b * dq.batch + t * dq.token + (group * h + head) * dq.head) +
      lane;
  uint4 before[kChunks];
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
    before[chunk] = backward.adds_dq && wanted < rows.count ? to[chunk * kLanes] : uint4{};
  float sum[kChunks][kEight] = {};
#pragma unroll 1
  for (int base = 0; base < (Once ? 1 : n); base += kParts) {
    const unsigned found = own.template find<kLanes, kParts>(Once ? 0 : base, lane, first_lane);
    const T* source = data + static_cast<std::int64_t>(base) * h * D;
    uint4 values[kParts][kChunks];
#pragma unroll
    for (int i = 0; i < kParts; ++i)
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        values[i][chunk] = make_uint4(0, 0, 0, 0);
        if (has(found, i))  // elsewhere nothing was ever written
          values[i][chunk] = __ldcs(reinterpret_cast<const uint4*>(source + i * (h * D) + chunk * kLanes * 8));
      }
#pragma unroll
    for (int i = 0; i < kParts; ++i)
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) hold(values[i][chunk]);
#pragma unroll
    for (int i = 0; i < kParts; ++i)
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        float x[kEight];
        widen<T>(x, values[i][chunk]);
#pragma unroll
        for (int j = 0; j < kEight; ++j) sum[chunk][j] = fmaf(has(found, i) ? p.scale : 0.f, x[j], sum[chunk][j]);
      }
  }
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {  // see Note [Order of a part]
    const uint4 packed = narrowed<T>(sum[chunk]);
    std::uint32_t x[4] = {packed.x, packed.y, packed.z, packed.w};
    transpose_quad(x);
    const uint4 own = make_uint4(x[0], x[1], x[2], x[3]);
    if (wanted < rows.count) store_whole(to + chunk * kLanes, backward.adds_dq ? added<T>(own, before[chunk]) : own);
  }
}

template <typename T, int D, bool Once>
__global__ void __launch_bounds__(JoinShape<D>::kThreads, JoinShape<D>::kCtasPerSm)
    join_parts_kernel(const AttentionBackward p, const Parts parts, const JoinRows rows) {
#if NSA_ON_HOPPER
  join_parts<T, D, Once>(p, parts, rows, static_cast<int>(blockIdx.x));
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
