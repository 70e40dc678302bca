// o and statistics of queries that go by parts (parts.cuh): their forced blocks (selected/forced.cuh), which have no
// parts, jointly, and with them their parts.
//
// Why: three blocks of a token's choice are forced, and neighbours share them. A part costs six bytes a column of Q and
// result, of which four pass memory; jointly these blocks cost products, and K and V from L2 once for 64 rows, while
// nothing but memory's rate bounds what is put together.
//
//   CTA of one warpgroup: Q of 64 rows (token, head); one place for K and V of 64 keys; a ring of parts for every
//   warp (part_stream.cuh), of which one is added a tile of keys and the others behind the last one
#pragma once

#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/selected/sm90_split/forced_walk.cuh"
#include "nsa/kernels/selected/sm90_split/join.cuh"
#include "nsa/kernels/selected/sm90_split/part_stream.cuh"

namespace nsa::kernels::hopper {

template <int Dk, int Dv>
struct JoinForwardShape {
  static constexpr int kThreads = 128, kWarps = kThreads / 32, kRows = 64;
  static constexpr int kCtasPerSm = Dk > 64 ? 2 : 4;     // per SM
  static constexpr int kOwnRows = kRows * 8 / kThreads;  // of Q, that a thread copies a share of
  static constexpr int kParts = 16;                      // of a row, weighed together
  static constexpr int kPlaces = Dk > 128 ? 2 : 3;       // for parts, a warp
  using K = Slab<kKeyTile, Dk>;
  using V = Slab<kKeyTile, Dv>;
  using Q = Slab<kRows, Dk>;
  static constexpr int kRingBytes = kPlaces * 16 * Dv * 2;  // a warp's
  static constexpr int kRingsAt = Q::kBytes + K::kBytes + V::kBytes, kBarriersAt = kRingsAt + kWarps * kRingBytes;
  static constexpr int kSharedBytes = 1024 + kBarriersAt + kWarps * kPlaces * 8;  // 1024: to align
};

// Of the rows g and g + 8 of a warp's 16, which a thread has with the other lanes of its quad.
struct RowsParts {
  unsigned found[2];            // a bit each: the parts that were looked for
  unsigned forced[2] = {0, 0};  // chosen ones, bit 0: the document's first block; 1: the one before the own; 2: the own

  // Which of the 16 parts from `base` on the rows of the tokens `query` (of the chunk's) have: those of places of the
  // table whose first key is not after the token, of whose number no earlier place has the same, and which are not
  // forced. Half a warp a token, so that a warp's tokens take few rounds: [first, last].
  __device__ void find(const AttentionForward& p, const Parts& parts, const Divisor& by_tiles, int pair, int base,
                       int first, int last, const int (&query)[2]) {
    const int lane = threadIdx.x & 31, part = base + lane % 16, place = by_tiles.quotient(part), n = p.geometry.n;
    const int l_sel = p.geometry.l_sel, b = pair / p.G, group = pair % p.G;
    found[0] = found[1] = 0;
#pragma unroll 1
    for (int two = first; two <= last; two += 2) {
      const int t = parts.first + min(two + lane / 16, last);
      const int position = t - (p.packed.first_token ? p.packed.first_token[t] : 0);
      const int* numbers = p.blocks + ((static_cast<std::int64_t>(b) * p.S + t) * parts.row_groups + group) * n;
      const int number = part < parts.per_token ? numbers[place] : -1;
      bool exists =
          number >= 0 && static_cast<std::int64_t>(number) * l_sel + (part - place * by_tiles.n) * kKeyTile <= position;
      const unsigned same = __match_any_sync(0xffffffffu, number) >> (lane & 16) & 0xffffu;
      exists &= by_tiles.quotient(base + __ffs(static_cast<int>(same)) - 1) == place;
#pragma unroll 1
      for (int i = 0; i < by_tiles.quotient(base); ++i) exists &= numbers[i] != number;
      const bool is_first = number == 0, apart = is_forced(number, position, l_sel);
      const bool is_own = !is_first && (number + std::int64_t{1}) * l_sel > position;
      const unsigned all = __ballot_sync(0xffffffffu, exists && !apart);
      const unsigned firsts = __ballot_sync(0xffffffffu, exists && is_first);
      const unsigned befores = __ballot_sync(0xffffffffu, exists && apart && !is_first && !is_own);
      const unsigned owns = __ballot_sync(0xffffffffu, exists && is_own);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int which = query[half] - two;
        if (which != 0 && which != 1) continue;
        const auto of_token = [&](unsigned bits) { return bits >> 16 * which & 0xffffu; };
        found[half] = of_token(all);
        forced[half] |= (of_token(firsts) ? 1u : 0) | (of_token(befores) ? 2u : 0) | (of_token(owns) ? 4u : 0);
      }
    }
  }
};

// Grid: (tiles of a chunk's rows, pairs of a turn).
template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(128, JoinForwardShape<Dk, Dv>::kCtasPerSm)
    join_forward_kernel(const AttentionForward p, const Pieces pieces, const Divisor by_tiles, const Parts parts) {
#if NSA_ON_HOPPER
  using Shape = JoinForwardShape<Dk, Dv>;
  constexpr int kRows = Shape::kRows, kTiles = kKeyTile / 8, kSteps = kKeyTile / 16, kParts = Shape::kParts;
  constexpr int kOwn = kParts / 4;  // whose weights a lane of a quad makes
  griddepcontrol_launch_dependents();
  if (parts.unless && *parts.unless) return griddepcontrol_wait();
  extern __shared__ char shared[];
  __shared__ float row_weights[kRows][kParts + 1];  // of a row's parts; + 1: for the banks
  const std::uint32_t before = shared_address(shared), q_tile = (before + 1023) & ~1023u;
  const std::uint32_t k_tile = q_tile + Shape::Q::kBytes, v_tile = k_tile + Shape::K::kBytes;
  const std::uint32_t barriers = q_tile + Shape::kBarriersAt;
  const Heads heads(p.Hq / p.G);
  const int pair = parts.first_pair + static_cast<int>(blockIdx.y), b = pair / p.G, group = pair % p.G;
  const int rows = parts.count * heads.h, first_row = static_cast<int>(blockIdx.x) * kRows;
  const auto token_of = [&](int row) { return parts.first + heads.token(min(row, rows - 1)); };
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kWarps * Shape::kPlaces; ++i) mbarrier_init(barriers + i * 8, 1);
    fence_mbarrier_init();
  }

  const int q_token = static_cast<int>(p.q.token / 8), q_head = static_cast<int>(p.q.head / 8);
  int offsets[Shape::kOwnRows];
#pragma unroll
  for (int i = 0; i < Shape::kOwnRows; ++i) {
    const int row = first_row + Shape::Q::template own_row<Shape::kThreads>(i), query = heads.token(row);
    offsets[i] = row < rows ? offset_of({parts.first + query, heads.head(row, query)}, q_token, q_head) : -1;
  }
  ForcedWalk keys(p, token_of(first_row), token_of(first_row + kRows - 1));
  const T* k = static_cast<const T*>(p.k.data) + b * p.k.batch + group * p.k.head;
  const T* v = static_cast<const T*>(p.v.data) + b * p.v.batch + group * p.v.head;
  const auto load_k = [&](const ForcedWalk& own) {
    if (own.has_more())
      Shape::K::template load<Shape::kThreads>(k_tile, k, static_cast<int>(p.k.token), own.first, own.last);
    cp_async_commit();
  };
  const auto load_v = [&](const ForcedWalk& own) {
    if (own.has_more())
      Shape::V::template load<Shape::kThreads>(v_tile, v, static_cast<int>(p.v.token), own.first, own.last);
    cp_async_commit();
  };
  Shape::Q::template gather_own<Shape::kThreads>(q_tile, group_rows<T>(p.q, b, group, heads.h), offsets);
  load_k(keys);
  load_v(keys);

  // A thread's two rows, and which parts they have.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own_place = warp * 16 + lane / 4;
  int t[2], head[2], of_token[2];
  bool inside[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + own_place + 8 * half, place = lane / 4 + 8 * half;
    inside[half] = row < rows;
    t[half] = token_of(row);
    head[half] = heads.head(min(row, rows - 1), t[half] - parts.first);
    of_token[half] =
        inside[half] && (place == 0 || head[half] == 0) ? min(min(heads.h - head[half], 16 - place), rows - row) : 0;
  }
  const int query[2] = {t[0] - parts.first, t[1] - parts.first};
  const auto query_of_place = [&](int place) { return heads.token(min(first_row + warp * 16 + place, rows - 1)); };
  const int first_query = query_of_place(0), last_query = query_of_place(15);
  RowsParts own;
  const auto find = [&](int base) {
    own.find(p, parts, by_tiles, pair, base, first_query, last_query, query);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (!inside[half]) own.found[half] = 0;
  };
#pragma unroll 1
  for (int base = (parts.per_token - 1) / kParts * kParts; base >= 0; base -= kParts) find(base);
  const ForcedToken forced[2] = {{p, t[0]}, {p, t[1]}};

  const float factor = p.scale * kLog2E;
  float s[kTiles][4], out[Dv / 8][4] = {};
  bool sees_keys[2] = {false, false};
  RunningSoftmax softmax;
  const auto rescale_out = [&](const float(&rescale)[2]) {
#pragma unroll
    for (int n = 0; n < Dv / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] *= rescale[e / 2];
  };
  float since[2];  // what `out` was rescaled with since the parts were weighed
  PartStream<T, Dv, Shape::kPlaces> stream(shared + (q_tile - before) + Shape::kRingsAt + warp * Shape::kRingBytes,
                                           barriers + warp * Shape::kPlaces * 8, of_token);
  // The parts from `base` on: sets them on their way, and asks for their statistics.
  float2 statistics[2][kOwn];
  const auto ask_parts = [&](int base) {
    const T* source[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t first = static_cast<std::int64_t>(parts.at(pair, t[half], base)) * heads.h + head[half];
      source[half] = static_cast<const T*>(parts.data) + first * Dv;
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        statistics[half][k] = make_float2(-INFINITY, 0.f);
        if (has(own.found[half], k * 4 + lane % 4))
          statistics[half][k] = parts.stats[first + (k * 4 + lane % 4) * heads.h];
      }
    }
    stream.begin(own.found, source, heads.h * Dv);
  };
  const auto weigh_parts = [&] {
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = softmax.maximum[half];
#pragma unroll
      for (int k = 0; k < kOwn; ++k) highest = fmaxf(highest, statistics[half][k].x);
      highest = quad_max(highest);
      const float origin = origin_of(highest);
      rescale[half] = exp2_fast((softmax.maximum[half] - origin) * factor);
      softmax.maximum[half] = highest;
      softmax.sum[half] *= rescale[half];
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        const auto [score, sum] = statistics[half][k];
        const float weight = has(own.found[half], k * 4 + lane % 4) ? exp2_fast((score - origin) * factor) * sum : 0.f;
        row_weights[own_place + 8 * half][k * 4 + lane % 4] = weight;
        softmax.sum[half] += weight;
      }
      sees_keys[half] |= own.found[half] != 0;
      since[half] = 1;
    }
    rescale_out(rescale);
    __syncwarp();
  };
  const auto add_part = [&] {
    if (!stream.has_more()) return;
    stream.next([&](int half, int part, const uint4(&values)[Dv / 32]) {
      const float weight = row_weights[own_place + 8 * half][part] * since[half];
#pragma unroll
      for (int j = 0; j < Dv / 32; ++j) {
        float x[kEight];
        widen<T>(x, values[j]);
#pragma unroll
        for (int e = 0; e < kEight; ++e) {
          float& sum = out[j * 4 + e / 2][2 * half + e % 2];
          sum = fmaf(weight, x[e], sum);
        }
      }
    });
  };
  __syncthreads();  // the barriers have been started
  griddepcontrol_wait();
  ask_parts(0);
  bool weighed = false;
#pragma unroll 1
  while (keys.has_more()) {
    ForcedWalk next = keys;
    next.next(p);
    cp_async_wait<1>();
    fence_proxy_async();
    __syncthreads();  // K is there
    pin(s);
    wgmma_fence();
    product_of_columns<T, Dk / 16>(s, typename Shape::Q(), q_tile, typename Shape::K(), k_tile);
    wgmma_commit();
    int end[2];  // each row sees the keys below its own end
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned bit = keys.block == forced[half].first_block     ? 1u
                           : keys.block == forced[half].own_block     ? 4u
                           : keys.block == forced[half].own_block - 1 ? 2u
                                                                      : 0u;
      end[half] = (own.forced[half] & bit) != 0 ? min(t[half] + 1, keys.last) : 0;
      sees_keys[half] |= end[half] > keys.first;
    }
    wgmma_wait<0>();
    pin(s);
    __syncthreads();  // K is used up
    load_k(next);
    if (!weighed) weigh_parts();  // not before: their statistics come under the first product
    weighed = true;
    if (min(end[0], end[1]) < keys.first + kKeyTile) {
      const int column = keys.first + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (column + n * 8 + e % 2 >= end[e / 2]) s[n][e] = -INFINITY;
    }
    float rescale[2];
    softmax.update(s, factor, rescale);
    rescale_out(rescale);
#pragma unroll
    for (int half = 0; half < 2; ++half) since[half] *= rescale[half];
    std::uint32_t weights[kSteps][4];
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) as_a<T>(weights[kk], s, kk);
    add_part();  // while V is on its way; not beside products, which ptxas would serialise
    cp_async_wait<1>();
    fence_proxy_async();
    __syncthreads();  // V is there
    pin(out);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) Wgmma<T, Dv>::values(out, weights[kk], Shape::V::rows(v_tile, kk));
    wgmma_commit();
    wgmma_wait<0>();
    pin(out);
    __syncthreads();  // V is used up
    load_v(next);
    keys = next;
  }
  cp_async_wait<0>();
#pragma unroll 1
  for (int base = 0;;) {
#pragma unroll 1
    while (stream.has_more()) add_part();
    base += kParts;
    if (base >= parts.per_token) break;
    __syncwarp();  // the weights are used up
    find(base);
    ask_parts(base);
    weigh_parts();
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int of_all = group * heads.h + head[half];
    const float total = total_of(quad_sum(softmax.sum[half]), sees_keys[half]);
    if (inside[half] && lane % 4 == 0)
      reinterpret_cast<float2*>(p.stats)[(static_cast<std::int64_t>(b) * p.Hq + of_all) * p.S + t[half]] =
          stored_statistics(softmax.maximum[half], total, factor);
    T* const to = static_cast<T*>(p.o.data) + b * p.o.batch + t[half] * p.o.token + of_all * p.o.head;
    store_row(inside[half] ? to : nullptr, out, half, normaliser(total), total == 0.f);
  }
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
