// A query's parts (parts.cuh) put together: forward o and statistics, backward dQ.
//
// Nothing but memory's rate should count here. A row's lanes find out together which parts it has, and then ask for
// many parts' values at once, and for their statistics; the weights are made while the values are on their way. No row
// waits for another warp's.
#pragma once

#include "nsa/kernels/attention/softmax.cuh"
#include "nsa/kernels/common/eight.cuh"
#include "nsa/kernels/common/heads.cuh"
#include "nsa/kernels/hopper/parts.cuh"

namespace nsa::kernels::hopper {

// What a thread of join_parts finds its row with: made on the host, where divisions cost nothing.
struct JoinRows {
  Divisor by_heads, by_tokens, by_tiles;  // heads of a group, tokens of the chunk, parts of a block of keys
  int count;                              // (pair, token, head)

  JoinRows(int h, const Parts& parts, const Pieces& pieces)
      : by_heads(h), by_tokens(parts.count), by_tiles(pieces.tiles_a_block), count(parts.pairs * parts.count * h) {}
};

template <int D>
struct JoinShape {
  static constexpr int kThreads = 128, kBlocks = D > 128 ? 3 : 4;  // a multiprocessor, as the registers allow
  static constexpr int kLanes = D == 128 ? 16 : 8;                 // of a row
  static constexpr int kChunks = D / 8 / kLanes;                   // that a lane holds of a row, each of 16 bytes
  static constexpr int kParts = D > 128 ? 8 : 16;                  // asked for at once, as the registers allow
  static constexpr int kOwn = kParts / kLanes;                     // of these, whose weights a lane makes
  static constexpr int kRows = kThreads / kLanes;                  // of a block of threads
};

// The rows of some queries from their parts, in the parts' order: forward o and stats, backward dQ. Once: a query has
// no more than kParts parts, so that nothing is looked at again. By a block of threads, number `block` of as many as
// the rows need.
template <typename T, int D, bool Backward, bool Once>
__device__ inline void join_parts(const AttentionForward& p, const Rows& out, const Parts& parts, const JoinRows& rows,
                                  int block) {
  if (parts.unless && *parts.unless) return;
  using Shape = JoinShape<D>;
  constexpr int kLanes = Shape::kLanes, kChunks = Shape::kChunks, kParts = Shape::kParts, kOwn = Shape::kOwn;
  const int lane = threadIdx.x % kLanes, first_lane = static_cast<int>(threadIdx.x) % 32 - lane;  // of the warp
  const int wanted = block * Shape::kRows + static_cast<int>(threadIdx.x) / kLanes;
  const int row = min(wanted, rows.count - 1), h = rows.by_heads.n, n = parts.per_token;
  const int end = Once ? 1 : n;  // of what a round begins with
  const int query = rows.by_heads.quotient(row), head = row - query * h, turn_pair = rows.by_tokens.quotient(query);
  const int t = parts.first + query - turn_pair * parts.count;
  const int pair = parts.first_pair + turn_pair, b = pair / p.G, group = pair % p.G;
  const int* numbers = p.blocks + ((static_cast<std::int64_t>(b) * p.S + t) * parts.row_groups + group) * p.geometry.n;
  const int position = t - (p.packed.first_token ? p.packed.first_token[t] : 0);
  const std::int64_t first = static_cast<std::int64_t>(parts.at(pair, t, 0)) * h + head;

  const auto own_part = [&](int base, int k) { return base + k * kLanes + lane; };
  const auto has = [](unsigned found, int i) { return (found >> i & 1) != 0; };
  // Which of the parts from `base` on the row has, a bit each: the part's first key is not after the token, and no
  // earlier place of the row of the table has the same number.
  const auto look = [&](int base) {
    int number[kOwn], place[kOwn];
    bool exists[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int part = own_part(base, k);
      place[k] = rows.by_tiles.quotient(part);
      number[k] = part < n ? numbers[place[k]] : -1;
      exists[k] = number[k] >= 0 && static_cast<std::int64_t>(number[k]) * p.geometry.l_sel +
                                            (part - place[k] * rows.by_tiles.n) * kKeyTile <=
                                        position;
    }
    const int earlier = Once ? 0 : rows.by_tiles.quotient(base);
    for (int i = 0; i < earlier; ++i)
#pragma unroll
      for (int k = 0; k < kOwn; ++k) exists[k] &= numbers[i] != number[k];
    unsigned found = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int other = __shfl_sync(0xffffffffu, number[i / kLanes], first_lane + i % kLanes);
      const int other_place = rows.by_tiles.quotient(base + i);
#pragma unroll
      for (int k = 0; k < kOwn; ++k) exists[k] &= other != number[k] || other_place >= place[k];
    }
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      found |= (__ballot_sync(0xffffffffu, exists[k]) >> first_lane & ((1u << kLanes) - 1)) << k * kLanes;
    return found;
  };
  uint4 values[kParts][kChunks];
  const auto ask_values = [&](int base, unsigned found) {  // elsewhere nothing was ever written
    const T* source = static_cast<const T*>(parts.data) + (first + static_cast<std::int64_t>(base) * h) * D + lane * 8;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        values[i][chunk] = make_uint4(0, 0, 0, 0);
        if (has(found, i))
          values[i][chunk] = __ldcs(reinterpret_cast<const uint4*>(source + i * (h * D) + chunk * kLanes * 8));
      }
  };
  float2 own[kOwn];  // statistics of the lane's parts
  const auto ask_statistics = [&](int base, unsigned found) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      own[k] = make_float2(-INFINITY, 0.f);
      if (has(found, k * kLanes + lane)) own[k] = parts.stats[first + static_cast<std::int64_t>(own_part(base, k)) * h];
    }
  };

  unsigned found = look(0);
  ask_values(0, found);
  float origin = 0, inverse = 0;
  const float factor = p.scale * kLog2E;
  const auto weight = [&](unsigned found, int k) {
    return has(found, k * kLanes + lane) ? exp2_fast((own[k].x - origin) * factor) * own[k].y : 0.f;
  };
  if constexpr (!Backward) {
    float maximum = -INFINITY;
    bool sees_keys = false;
#pragma unroll 1
    for (int base = 0; base < end; base += kParts) {
      const unsigned present = base == 0 ? found : look(base);
      ask_statistics(base, present);
#pragma unroll
      for (int k = 0; k < kOwn; ++k) maximum = fmaxf(maximum, own[k].x);
      sees_keys |= present != 0;
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
    origin = origin_of(maximum);
    // Every 32nd part in one sum, these sums by halves: the same in every width.
    float sums[32 / kLanes] = {};
#pragma unroll 1
    for (int base = 0; base < end; base += 32)
#pragma unroll
      for (int round = 0; round < 32 / kParts; ++round) {
        const int from = base + round * kParts;
        if (from >= end) break;
        if constexpr (!Once) {
          found = look(from);
          ask_statistics(from, found);
        }
#pragma unroll
        for (int k = 0; k < kOwn; ++k) sums[round * kOwn + k] += weight(found, k);
      }
#pragma unroll
    for (int count = 32 / kLanes; count > 1; count /= 2)
#pragma unroll
      for (int i = 0; i < count / 2; ++i) sums[i] += sums[i + count / 2];
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], step);
    const float total = total_of(sums[0], sees_keys);
    inverse = normaliser(total);
    if (lane == 0 && wanted < rows.count) {
      const std::int64_t at = (static_cast<std::int64_t>(b) * p.Hq + group * h + head) * p.S + t;
      reinterpret_cast<float2*>(p.stats)[at] = stored_statistics(maximum, total, factor);
    }
  }

  float sum[kChunks][kEight] = {};
#pragma unroll 1
  for (int base = 0; base < end; base += kParts) {
    if constexpr (!Once) {
      found = look(base);
      if (base > 0) ask_values(base, found);
      if constexpr (!Backward) ask_statistics(base, found);
    }
    float weights[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) weights[k] = Backward ? 0.f : weight(found, k) * inverse;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) hold(values[i][chunk]);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float factor_of_part = Backward ? (has(found, i) ? p.scale : 0.f)
                                            : __shfl_sync(0xffffffffu, weights[i / kLanes], first_lane + i % kLanes);
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        float x[kEight];
        widen<T>(x, values[i][chunk]);
#pragma unroll
        for (int j = 0; j < kEight; ++j) sum[chunk][j] = fmaf(factor_of_part, x[j], sum[chunk][j]);
      }
    }
  }
  if (wanted >= rows.count) return;
  T* to = static_cast<T*>(out.data) + b * out.batch + t * out.token + (group * h + head) * out.head + lane * 8;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) store<T>(reinterpret_cast<uint4*>(to + chunk * kLanes * 8), sum[chunk]);
}

template <typename T, int D, bool Backward, bool Once>
__global__ void __launch_bounds__(JoinShape<D>::kThreads, JoinShape<D>::kBlocks)
    join_parts_kernel(const AttentionForward p, const Rows out, const Parts parts, const JoinRows rows) {
  join_parts<T, D, Backward, Once>(p, out, parts, rows, static_cast<int>(blockIdx.x));
}

}  // namespace nsa::kernels::hopper
