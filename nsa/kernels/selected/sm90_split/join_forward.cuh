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

template <int Dk_, int Dv_>
struct JoinForwardShape {
  static constexpr int Dk = Dk_, Dv = Dv_;
  static constexpr int kThreads = 128, kWarps = kThreads / 32, kRows = 64;
  static constexpr int kCtasPerSm = Dk > 64 ? 2 : 4;     // per SM
  static constexpr int kOwnRows = kRows * 8 / kThreads;  // of Q, that a thread copies a share of
  static constexpr int kParts = 16;                      // of a row, weighed together
  static constexpr int kPlaces = Dk > 128 ? 2 : 3;       // for parts, a warp
  using K = Slab<kKeyTile, Dk>;
  using V = Slab<kKeyTile, Dv>;
  using Q = Slab<kRows, Dk>;
  using PartWeights = float[kRows][kParts + 1];             // of a row's parts; + 1: for the banks
  static constexpr int kRingBytes = kPlaces * 16 * Dv * 2;  // a warp's
  static constexpr int kRingsAt = Q::kBytes + K::kBytes + V::kBytes, kBarriersAt = kRingsAt + kWarps * kRingBytes;
  static constexpr int kSharedBytes = 1024 + kBarriersAt + kWarps * kPlaces * 8;  // 1024: to align
};

// What a CTA is to do: 64 rows (token, head) of a chunk.
struct JoinForwardWork {
  const AttentionForward& p;
  const Parts& parts;
  const Divisor& by_tiles;
  Heads heads;
  int pair, b, group;
  int rows, first_row;  // all of the chunk; the CTA's first

  __device__ JoinForwardWork(const AttentionForward& problem, const Parts& all, const Divisor& tiles_a_block,
                             int rows_a_cta)
      : p(problem),
        parts(all),
        by_tiles(tiles_a_block),
        heads(p.Hq / p.G),
        pair(parts.first_pair + static_cast<int>(blockIdx.y)),
        b(pair / p.G),
        group(pair % p.G),
        rows(parts.count * heads.h),
        first_row(static_cast<int>(blockIdx.x) * rows_a_cta) {}
  // Of a row its token's number in the chunk; beyond the end the last row's.
  __device__ int query(int row) const { return heads.token(min(row, rows - 1)); }
  __device__ int token(int row) const { return parts.first + query(row); }
};

// Where a CTA's tiles, and its warps' rings of parts, are in shared memory.
template <typename S>
struct JoinForwardPlaces {
  char* shared;
  std::uint32_t q, k, v, barriers;

  __device__ explicit JoinForwardPlaces(char* memory)
      : shared(memory),
        q((shared_address(memory) + 1023) & ~1023u),
        k(q + S::Q::kBytes),
        v(k + S::K::kBytes),
        barriers(q + S::kBarriersAt) {}
  __device__ char* ring(int warp) const {
    return shared + (q - shared_address(shared)) + S::kRingsAt + warp * S::kRingBytes;
  }
  __device__ std::uint32_t barriers_of(int warp) const { return barriers + warp * S::kPlaces * 8; }
  // One thread.
  __device__ void start_barriers() const {
    for (int i = 0; i < S::kWarps * S::kPlaces; ++i) mbarrier_init(barriers + i * 8, 1);
    fence_mbarrier_init();
  }
};

// All threads: Q of the CTA's rows, K and V of one tile of keys after the other.
template <typename T, typename S>
class JoinForwardLoads {
 public:
  __device__ JoinForwardLoads(const JoinForwardWork& all, const JoinForwardPlaces<S>& addresses)
      : work(all), places(addresses), k(group_keys(all.p.k)), v(group_keys(all.p.v)) {}

  __device__ void load_q() const {
    const Rows& q = work.p.q;
    const int token_stride = static_cast<int>(q.token / 8), head_stride = static_cast<int>(q.head / 8);
    int offsets[S::kOwnRows];
#pragma unroll
    for (int i = 0; i < S::kOwnRows; ++i) {
      const int row = work.first_row + S::Q::template own_row<S::kThreads>(i), query = work.heads.token(row);
      const Row own{work.parts.first + query, work.heads.head(row, query)};
      offsets[i] = row < work.rows ? offset_of(own, token_stride, head_stride) : -1;
    }
    S::Q::template gather_own<S::kThreads>(places.q, group_rows<T>(q, work.b, work.group, work.heads.h), offsets);
  }
  __device__ void load_k(const ForcedWalk& keys) const {
    if (keys.has_more())
      S::K::template load<S::kThreads>(places.k, k, static_cast<int>(work.p.k.token), keys.first, keys.last);
    cp_async_commit();
  }
  __device__ void load_v(const ForcedWalk& keys) const {
    if (keys.has_more())
      S::V::template load<S::kThreads>(places.v, v, static_cast<int>(work.p.v.token), keys.first, keys.last);
    cp_async_commit();
  }

 private:
  const JoinForwardWork& work;
  const JoinForwardPlaces<S>& places;
  const T *const k, *const v;

  __device__ const T* group_keys(const Rows& x) const {
    return static_cast<const T*>(x.data) + work.b * x.batch + work.group * x.head;
  }
};

// The rows g and g + 8 of a warp's 16, which a thread has with the other lanes of its quad.
struct JoinForwardRows {
  int t[2], head[2];
  bool inside[2];
  int of_token[2];  // as PartStream takes them

  __device__ explicit JoinForwardRows(const JoinForwardWork& work) {
    const int lane = threadIdx.x % 32, own_place = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = work.first_row + own_place + 8 * half, place = lane / 4 + 8 * half;
      inside[half] = row < work.rows;
      t[half] = work.token(row);
      head[half] = work.heads.head(min(row, work.rows - 1), t[half] - work.parts.first);
      of_token[half] = inside[half] && (place == 0 || head[half] == 0)
                           ? min(min(work.heads.h - head[half], 16 - place), work.rows - row)
                           : 0;
    }
  }
};

// Which parts those rows have.
struct RowsParts {
  unsigned found[2];            // a bit each: the parts that were looked for
  unsigned forced[2] = {0, 0};  // chosen ones, bit 0: the document's first block; 1: the one before the own; 2: the own

  // Which of the 16 parts from `base` on the rows of the tokens `query` (of the chunk's) have: those of places of the
  // table whose first key is not after the token, of whose number no earlier place has the same, and which are not
  // forced. Half a warp a token, so that a warp's tokens take few rounds: [first, last].
  __device__ void find(const JoinForwardWork& work, int base, int first, int last, const int (&query)[2]) {
    const AttentionForward& p = work.p;
    const Parts& parts = work.parts;
    const Divisor& by_tiles = work.by_tiles;
    const int lane = threadIdx.x & 31, part = base + lane % 16, place = by_tiles.quotient(part), n = p.geometry.n;
    const int l_sel = p.geometry.l_sel;
    found[0] = found[1] = 0;
#pragma unroll 1
    for (int two = first; two <= last; two += 2) {
      const int t = parts.first + min(two + lane / 16, last);
      const int position = t - (p.packed.first_token ? p.packed.first_token[t] : 0);
      const int* numbers =
          p.blocks + ((static_cast<std::int64_t>(work.b) * p.S + t) * parts.row_groups + work.group) * n;
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

// The parts of a warp's rows, 16 of a row at a time: those from `base` on. It has the rows itself: a reference to them
// in here would keep both, and what refers to them, in local memory.
template <typename T, typename S>
class JoinForwardParts {
 public:
  using Sums = float[S::Dv / 8][4];
  const JoinForwardRows rows;

  __device__ JoinForwardParts(const JoinForwardWork& all, const JoinForwardPlaces<S>& places,
                              typename S::PartWeights& of_rows)
      : rows(all),
        work(all),
        row_weights(of_rows),
        lane(threadIdx.x % 32),
        own_place(static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4),
        first_query(all.query(all.first_row + own_place - lane / 4)),
        last_query(all.query(all.first_row + own_place - lane / 4 + 15)),
        stream(places.ring(threadIdx.x / 32), places.barriers_of(threadIdx.x / 32), rows.of_token) {}

  // All of a token's, for what is forced; the first ones last, which are then those that were found.
  __device__ void find_all() {
#pragma unroll 1
    for (int base = (work.parts.per_token - 1) / S::kParts * S::kParts; base >= 0; base -= S::kParts) find(base);
  }
  __device__ void find(int base) {
    const int query[2] = {rows.t[0] - work.parts.first, rows.t[1] - work.parts.first};
    own.find(work, base, first_query, last_query, query);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (!rows.inside[half]) own.found[half] = 0;
  }
  [[nodiscard]] __device__ unsigned forced(int half) const { return own.forced[half]; }
  // Sets those that were found on their way, and asks for their statistics.
  __device__ void ask(int base) {
    const Parts& parts = work.parts;
    const T* source[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = parts.at(work.pair, rows.t[half], base);
      const std::int64_t first = static_cast<std::int64_t>(at) * work.heads.h + rows.head[half];
      source[half] = static_cast<const T*>(parts.data) + first * S::Dv;
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        statistics[half][k] = make_float2(-INFINITY, 0.f);
        if (has(own.found[half], own_part(k))) statistics[half][k] = parts.stats[first + own_part(k) * work.heads.h];
      }
    }
    stream.begin(own.found, source, work.heads.h * S::Dv);
  }
  // Their weights, and by what `out` is to be rescaled for them.
  __device__ void weigh(RunningSoftmax& softmax, bool (&sees_keys)[2], float factor, float (&rescale)[2]) {
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
        const float weight = has(own.found[half], own_part(k)) ? exp2_fast((score - origin) * factor) * sum : 0.f;
        row_weights[own_place + 8 * half][own_part(k)] = weight;
        softmax.sum[half] += weight;
      }
      sees_keys[half] |= own.found[half] != 0;
      since[half] = 1;
    }
  }
  // Says that `out` has been rescaled.
  __device__ void rescaled(const float (&by)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) since[half] *= by[half];
  }
  [[nodiscard]] __device__ bool has_more() const { return stream.has_more(); }
  // The next one of every row.
  __device__ void add(Sums& out) {
    if (!stream.has_more()) return;
    stream.next([&](int half, int part, const uint4(&values)[S::Dv / 32]) {
      const float weight = row_weights[own_place + 8 * half][part] * since[half];
#pragma unroll
      for (int j = 0; j < S::Dv / 32; ++j) {
        float x[kEight];
        widen<T>(x, values[j]);
#pragma unroll
        for (int e = 0; e < kEight; ++e) {
          float& sum = out[j * 4 + e / 2][2 * half + e % 2];
          sum = fmaf(weight, x[e], sum);
        }
      }
    });
  }

 private:
  static constexpr int kOwn = S::kParts / 4;  // whose weights a lane of a quad makes
  const JoinForwardWork& work;
  typename S::PartWeights& row_weights;
  const int lane, own_place;
  const int first_query, last_query;  // the warp's
  RowsParts own;
  float2 statistics[2][kOwn];
  float since[2];  // what `out` was rescaled with since the parts were weighed
  PartStream<T, S::Dv, S::kPlaces> stream;

  __device__ int own_part(int k) const { return k * 4 + lane % 4; }
};

// The warpgroup of a CTA. Its arrays are variables of run(), handed to the steps, as those of DkvWarpgroup
// (interval/sm90_dkv.cuh) are.
template <typename T, typename S>
class JoinForwardWarpgroup {
 public:
  __device__ JoinForwardWarpgroup(const JoinForwardWork& all, const JoinForwardPlaces<S>& addresses,
                                  const JoinForwardLoads<T, S>& copies, typename S::PartWeights& part_weights)
      : work(all),
        places(addresses),
        loads(copies),
        lane(threadIdx.x % 32),
        parts(all, addresses, part_weights),
        factor(all.p.scale * kLog2E) {}

  __device__ void run(ForcedWalk keys) {
    parts.find_all();
    const ForcedToken forced[2] = {{work.p, parts.rows.t[0]}, {work.p, parts.rows.t[1]}};
    Scores s;
    Sums out = {};
    __syncthreads();  // the barriers have been started
    griddepcontrol_wait();
    parts.ask(0);
    bool weighed = false;
#pragma unroll 1
    while (keys.has_more()) {
      ForcedWalk next = keys;
      next.next(work.p);
      cp_async_wait<1>();
      fence_proxy_async();
      __syncthreads();  // K is there
      pin(s);
      wgmma_fence();
      product_of_columns<T, S::Dk / 16>(s, typename S::Q(), places.q, typename S::K(), places.k);
      wgmma_commit();
      int end[2];
      see(keys, forced, end);
      wgmma_wait<0>();
      pin(s);
      __syncthreads();  // K is used up
      loads.load_k(next);
      if (!weighed) weigh_parts(out);  // not before: their statistics come under the first product
      weighed = true;
      Rounded weights;
      weigh(keys.first, end, s, weights, out);
      parts.add(out);  // while V is on its way; not beside products, which ptxas would serialise
      cp_async_wait<1>();
      fence_proxy_async();
      __syncthreads();  // V is there
      add_values(weights, out);
      __syncthreads();  // V is used up
      loads.load_v(next);
      keys = next;
    }
    cp_async_wait<0>();
    add_other_parts(out);
    store(out);
  }

 private:
  static constexpr int kTiles = kKeyTile / 8, kSteps = kKeyTile / 16;
  using Scores = float[kTiles][4];
  using Sums = typename JoinForwardParts<T, S>::Sums;
  using Rounded = std::uint32_t[kSteps][4];
  const JoinForwardWork& work;
  const JoinForwardPlaces<S>& places;
  const JoinForwardLoads<T, S>& loads;
  const int lane;
  JoinForwardParts<T, S> parts;
  const float factor;
  RunningSoftmax softmax;
  bool sees_keys[2] = {false, false};

  // Each row sees the keys below its own end.
  __device__ void see(const ForcedWalk& keys, const ForcedToken (&forced)[2], int (&end)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned bit = keys.block == forced[half].first_block     ? 1u
                           : keys.block == forced[half].own_block     ? 4u
                           : keys.block == forced[half].own_block - 1 ? 2u
                                                                      : 0u;
      end[half] = (parts.forced(half) & bit) != 0 ? min(parts.rows.t[half] + 1, keys.last) : 0;
      sees_keys[half] |= end[half] > keys.first;
    }
  }
  // From S to P.
  __device__ void weigh(int first, const int (&end)[2], Scores& s, Rounded& weights, Sums& out) {
    if (min(end[0], end[1]) < first + kKeyTile) {
      const int column = first + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (column + n * 8 + e % 2 >= end[e / 2]) s[n][e] = -INFINITY;
    }
    float rescale[2];
    softmax.update(s, factor, rescale);
    rescale_out(out, rescale);
    parts.rescaled(rescale);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) as_a<T>(weights[kk], s, kk);
  }
  __device__ void add_values(const Rounded& weights, Sums& out) const {
    pin(out);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) Wgmma<T, S::Dv>::values(out, weights[kk], S::V::rows(places.v, kk));
    wgmma_commit();
    wgmma_wait<0>();
    pin(out);
  }
  __device__ void weigh_parts(Sums& out) {
    float rescale[2];
    parts.weigh(softmax, sees_keys, factor, rescale);
    rescale_out(out, rescale);
    __syncwarp();
  }
  // Those behind the last tile of keys.
  __device__ void add_other_parts(Sums& out) {
#pragma unroll 1
    for (int base = 0;;) {
#pragma unroll 1
      while (parts.has_more()) parts.add(out);
      base += S::kParts;
      if (base >= work.parts.per_token) break;
      __syncwarp();  // the weights are used up
      parts.find(base);
      parts.ask(base);
      weigh_parts(out);
    }
  }
  __device__ static void rescale_out(Sums& out, const float (&rescale)[2]) {
#pragma unroll
    for (int n = 0; n < S::Dv / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] *= rescale[e / 2];
  }
  __device__ void store(const Sums& out) const {
    const AttentionForward& p = work.p;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int of_all = work.group * work.heads.h + parts.rows.head[half], t = parts.rows.t[half];
      const float total = total_of(quad_sum(softmax.sum[half]), sees_keys[half]);
      if (parts.rows.inside[half] && lane % 4 == 0)
        reinterpret_cast<float2*>(p.stats)[(static_cast<std::int64_t>(work.b) * p.Hq + of_all) * p.S + t] =
            stored_statistics(softmax.maximum[half], total, factor);
      T* const to = static_cast<T*>(p.o.data) + work.b * p.o.batch + t * p.o.token + of_all * p.o.head;
      store_row(parts.rows.inside[half] ? to : nullptr, out, half, normaliser(total), total == 0.f);
    }
  }
};

// Grid: (tiles of a chunk's rows, pairs of a turn).
template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(128, JoinForwardShape<Dk, Dv>::kCtasPerSm)
    join_forward_kernel(const AttentionForward p, const Divisor by_tiles, const Parts parts) {
#if NSA_ON_HOPPER
  using S = JoinForwardShape<Dk, Dv>;
  griddepcontrol_launch_dependents();
  if (parts.unless && *parts.unless) return griddepcontrol_wait();
  extern __shared__ char shared[];
  __shared__ typename S::PartWeights part_weights;
  const JoinForwardWork work(p, parts, by_tiles, S::kRows);
  const JoinForwardPlaces<S> places(shared);
  if (threadIdx.x == 0) places.start_barriers();
  const ForcedWalk keys(p, work.token(work.first_row), work.token(work.first_row + S::kRows - 1));
  const JoinForwardLoads<T, S> loads(work, places);
  loads.load_q();
  loads.load_k(keys);
  loads.load_v(keys);
  JoinForwardWarpgroup<T, S>(work, places, loads, part_weights).run(keys);
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
