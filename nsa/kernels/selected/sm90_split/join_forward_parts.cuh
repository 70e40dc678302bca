// What a CTA of join_forward.cuh is to do, where its shared memory has what, and the parts of its rows: which there
// are, their weights, and their sum as they arrive.
#pragma once

#include "nsa/kernels/device/heads.cuh"
#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/selected/forced.cuh"
#include "nsa/kernels/selected/sm90_split/part_stream.cuh"
#include "nsa/kernels/selected/sm90_split/parts.cuh"

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

}  // namespace nsa::kernels::hopper
