// dK and dV of tiles of 64 keys for width 64: what sm90_dkv.cuh does, in the same pieces and to the same bits, with
// warps of their own for the rows.
//
//   two CTAs an SM, each a producer and a consumer warpgroup:
//
//      producer warps: 16 rows each           shared memory                        consumer warps: 16 keys each
//      tokens ─> addresses ─> cp.async ─────> ring of Q, dO [64 rows][D] ──wgmma──> S^T = K Q^T, dP^T = V dO^T
//             └> statistics, keys ──────────> ring of what a row is  ─────────────> P^T, dS^T in registers
//                                             K, V [64 keys][D]                     dV += P^T dO, dK += dS^T Q
//
// Barriers: `full` when a place is filled, `empty` when every consumer thread has used it up.
//
// Why: of what a warp of sm90_dkv.cuh issues for a tile of rows, two fifths find out where later rows are and copy
// them, and all warps meet twice. Here that stands beside the products. (Wider heads have no registers for it.)
#pragma once

#include "nsa/kernels/device/ring.cuh"
#include "nsa/kernels/interval/sm90_dkv.cuh"

namespace nsa::kernels::hopper {

template <int D_>
struct NarrowDkvShape {
  static constexpr int D = D_, kRows = 64, kStages = 4, kKeyTiles = 1;
  // The registers are cut for it, and a row is copied by eight lanes. A tile is published after the next one is asked
  // for, which waits for the place of the one kStages before that: of two it would wait for what it has to publish.
  static_assert(D == 64 && kStages >= 3);
  static constexpr int kProducers = 128, kThreads = kProducers + 128, kCtasPerSm = 2;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 200;  // the launch gives everyone 128
  using Keys = Slab<kKeyTile, D>;
  using Rows = Slab<kRows, D>;
  // What the rows in a place are.
  struct RowsAre {
    float2 softmax[kRows];  // origin, normaliser
    float delta[kRows];
    int2 seen[kRows];  // keys
  };
  static constexpr int kRowBytes = 2 * Rows::kBytes, kRowsAt = 2 * Keys::kBytes;
  static constexpr int kRowsAreAt = kRowsAt + kStages * kRowBytes;
  static constexpr int kRowsAreBytes = (static_cast<int>(sizeof(RowsAre)) + 15) / 16 * 16;
  static constexpr int kBarriersAt = kRowsAreAt + kStages * kRowsAreBytes;
  static constexpr int kSharedBytes = 1024 + kBarriersAt + 2 * kStages * 8;  // 1024: to align
};

template <typename S>
struct NarrowPlaces {
  char* base;

  __device__ std::uint32_t at(int offset) const { return shared_address(base) + offset; }
  __device__ std::uint32_t k() const { return at(0); }
  __device__ std::uint32_t v() const { return at(S::Keys::kBytes); }
  __device__ std::uint32_t q(int place) const { return at(S::kRowsAt + place * S::kRowBytes); }
  __device__ std::uint32_t o(int place) const { return q(place) + S::Rows::kBytes; }
  __device__ typename S::RowsAre& rows(int place) const {
    return *reinterpret_cast<typename S::RowsAre*>(base + S::kRowsAreAt + place * S::kRowsAreBytes);
  }
  __device__ std::uint32_t full(int place) const { return at(S::kBarriersAt + place * 8); }
  __device__ std::uint32_t empty(int place) const { return full(S::kStages + place); }

  __device__ void start_barriers() const {
    for (int i = 0; i < S::kStages; ++i) {
      mbarrier_init(full(i), S::kProducers);
      mbarrier_init(empty(i), 128);
    }
    fence_mbarrier_init();
  }
};

// What a CTA is to do.
template <typename S, bool Lists>
struct NarrowWork {
  const AttentionBackward& p;
  Heads heads;
  int b, group;
  KeyTile keys;
  RowOrder order;
  int tiles;     // of rows
  int turn = 0;  // the one that comes first, see Note [Rows together] (sm90_dkv.cuh)

  __device__ NarrowWork(const AttentionBackward& problem, const QueryLists& lists, const Pieces& pieces)
      : p(problem),
        heads(p.forward.Hq / p.forward.G),
        b(static_cast<int>(blockIdx.z) / p.forward.G),
        group(static_cast<int>(blockIdx.z) % p.forward.G),
        keys(Lists ? list_tile(lists, p.forward, pieces, heads, blockIdx.x, blockIdx.y, blockIdx.z)
                   : interval_tile(p.forward, pieces, heads, blockIdx.x, blockIdx.y, blockIdx.z, S::kRows)),
        order{heads,
              Lists ? lists.tokens : nullptr,
              nullptr,
              keys.row_begin,
              keys.row_end,
              Lists ? *lists.offset(blockIdx.z, blockIdx.y / pieces.tiles_a_block, p.forward.selection.J) : 0},
        tiles(max(0, keys.row_end - keys.row_begin + S::kRows - 1) / S::kRows) {
    if (Lists || tiles == 0) return;
    const Interval interval(p.forward);
    const int period = interval.window ? tiles : max(p.forward.S * heads.h / S::kRows / 16, 1);
    turn = period - keys.row_begin / S::kRows % period;
    if (turn >= tiles) turn = 0;
  }
  // Row i of a tile; none beyond the last tile.
  __device__ Row row(int tile, int i) const {
    if (tile >= tiles) return Row();
    tile += turn;
    if (tile >= tiles) tile -= tiles;
    return order.row(keys.row_begin + tile * S::kRows + i);
  }
};

// A producer warp, of 16 rows of every tile. Lane i owns row i % 16 and asks ahead for what it is, see Note [Rows
// ahead].
template <typename T, typename S, bool Lists>
class NarrowProducer {
 public:
  __device__ NarrowProducer(const NarrowWork<S, Lists>& all, const NarrowPlaces<S>& addresses)
      : work(all),
        places(addresses),
        f(all.p.forward),
        interval(f),
        lane(static_cast<int>(threadIdx.x) % 32),
        first_row(static_cast<int>(threadIdx.x) / 32 * kOwn),
        q(group_rows<T>(f.q, all.b, all.group, all.heads.h) + lane % 8 * 8),
        o(group_rows<T>(all.p.dout, all.b, all.group, all.heads.h) + lane % 8 * 8) {}

  __device__ void run() {
    if (work.tiles == 0) return;
    load_keys();  // they come with the first tile
    Ring<S::kStages> ring;
    Row now = own(0), next = own(1);
    RowStatistics statistics = statistics_of(now);
#pragma unroll 1
    for (int tile = 0; tile < work.tiles; ++tile, ring.advance()) {
      mbarrier_wait(places.empty(ring.place()), ring.parity() ^ 1);
      copy(ring.place(), now);
      const RowStatistics following = statistics_of(next);
      const Row later = own(tile + 2);
      describe(places.rows(ring.place()), now, statistics);
      now = next, next = later, statistics = following;
      if (tile == 0) continue;
      cp_async_wait<1>();
      publish(ring.last().place());
    }
    cp_async_wait<0>();
    publish(ring.last().place());
  }

 private:
  static constexpr int kOwn = S::kRows / (S::kProducers / 32);
  const NarrowWork<S, Lists>& work;
  const NarrowPlaces<S>& places;
  const AttentionForward& f;
  const Interval interval;
  const int lane, first_row;
  const T *const q, *const o;  // of the group, this lane's eight columns

  __device__ void load_keys() const {
    const auto load = [&](std::uint32_t to, const Rows& x) {
      S::Keys::template load<S::kProducers>(to, static_cast<const T*>(x.data) + work.b * x.batch + work.group * x.head,
                                            static_cast<int>(x.token), work.keys.first, Lists ? work.keys.last : f.N);
    };
    load(places.k(), f.k);
    load(places.v(), f.v);
  }
  __device__ Row own(int tile) const { return work.row(tile, first_row + lane % kOwn); }
  __device__ RowStatistics statistics_of(const Row& row) const {
    return RowStatistics::load(f, work.p.delta, row, work.b, work.group, work.heads.h);
  }
  // Eight lanes a row, four rows at a time.
  __device__ void copy(int place, const Row& owned) const {
    const auto copy_to = [&](std::uint32_t to, const T* group, const Rows& rows) {
      const int own_offset = offset_of(owned, static_cast<int>(rows.token / 8), static_cast<int>(rows.head / 8));
#pragma unroll
      for (int i = 0; i < kOwn; i += 4) {
        const int offset = __shfl_sync(0xffffffffu, own_offset, i + lane / 8);
        cp_async(S::Rows::at(to, first_row + i + lane / 8, lane % 8), group + static_cast<std::int64_t>(offset) * 8,
                 offset >= 0);
      }
    };
    copy_to(places.q(place), q, f.q);
    copy_to(places.o(place), o, work.p.dout);
    cp_async_commit();
  }
  __device__ void describe(typename S::RowsAre& to, const Row& x, const RowStatistics& statistics) const {
    if (lane >= kOwn) return;
    const int row = first_row + lane;
    int2 seen = {0x7fffffff, 0x7fffffff};  // beyond the end, where only the last rows of a tile are
    if (x.token >= 0)
      seen = Lists ? make_int2(0, x.token + 1) : make_int2(interval.begin(x.token), interval.end(x.token));
    to.softmax[row] = statistics.origin_and_normaliser();
    to.delta[row] = statistics.delta;
    to.seen[row] = seen;
  }
  __device__ void publish(int place) const {
    fence_proxy_async();
    mbarrier_arrive(places.full(place));
  }
};

// The consumer warpgroup. See Note [Scores ahead] (sm90_dkv.cuh).
template <typename T, typename S, bool Lists>
class NarrowConsumer {
 public:
  __device__ NarrowConsumer(const NarrowWork<S, Lists>& all, const NarrowPlaces<S>& addresses)
      : work(all),
        places(addresses),
        lane(static_cast<int>(threadIdx.x) % 32),
        own_key(work.keys.first + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4),
        factor(work.p.forward.scale * kLog2E),
        k(uniform(anew(places.k()))) {}

  __device__ void run(float* partials) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dk[n][i] = dv[n][i] = 0.f;
    if (work.tiles > 0) {
      mbarrier_wait(places.full(0), 0);
      pin(s);
      pin(dp);
      wgmma_fence();
      start_s();
      start_dp();
      weigh();
    }
#pragma unroll 1
    for (int tile = 1; tile < work.tiles; ++tile) next();
    if (work.tiles > 0) {
      pin(dv);
      pin(dk);
      wgmma_fence();
      start_sums(ring.place());
      wgmma_wait<0>();
      pin(dv);
      pin(dk);
    }
    if (work.keys.first < work.keys.last)
      store_keys<T, D, D>(work.p, work.keys, work.b, work.group, own_key, dk, dv, partials);
  }

 private:
  static constexpr int D = S::D, kTiles = S::kRows / 8, kSteps = S::kRows / 16;
  const NarrowWork<S, Lists>& work;
  const NarrowPlaces<S>& places;
  const int lane;
  const int own_key;
  const float factor;
  const int k;  // address; V and the rows' places are so many bytes behind it
  Ring<S::kStages> ring;
  float dk[D / 8][4], dv[D / 8][4], s[kTiles][4], dp[kTiles][4];
  std::uint32_t weights[kSteps][4], gradients[kSteps][4];  // P and dS of one tile

  __device__ static int rows_at(int place) { return S::kRowsAt + place * S::kRowBytes; }
  __device__ void start_s() {
    product_of_operands<T, D / 16>(s, typename S::Keys(), S::Keys::columns(k, 0), typename S::Rows(),
                                   moved(S::Rows::columns(k, 0), rows_at(ring.place())));
    wgmma_commit();
  }
  __device__ void start_dp() {
    product_of_operands<T, D / 16>(dp, typename S::Keys(), S::Keys::columns(k + S::Keys::kBytes, 0), typename S::Rows(),
                                   moved(S::Rows::columns(k + S::Rows::kBytes, 0), rows_at(ring.place())));
    wgmma_commit();
  }
  __device__ void start_sums(int place) {
    const std::uint64_t o = moved(S::Rows::rows(k + S::Rows::kBytes, 0), rows_at(place));
    const std::uint64_t q = moved(S::Rows::rows(k, 0), rows_at(place));
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) Wgmma<T, D>::values(dv, weights[kk], S::Rows::rows_from(o, kk));
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) Wgmma<T, D>::values(dk, gradients[kk], S::Rows::rows_from(q, kk));
    wgmma_commit();
  }
  // The last tile's sums, and this one's weights.
  __device__ void next() {
    const int before = ring.place();
    ring.advance();
    mbarrier_wait(places.full(ring.place()), ring.parity());
    pin(dv);
    pin(dk);
    pin(s);
    wgmma_fence();
    start_sums(before);
    start_s();
    wgmma_wait<1>();
    pin(dv);
    pin(dk);
    mbarrier_arrive(places.empty(before));
    pin(dp);
    wgmma_fence();
    start_dp();
    weigh();
  }
  __device__ void mask(const typename S::RowsAre& rows, float (&c)[kTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int4 seen = *reinterpret_cast<const int4*>(&rows.seen[n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = own_key + i / 2 * 8;
        if (i % 2 ? key < seen.z || key >= seen.w : key < seen.x || key >= seen.y) c[n][i] = 0.f;
      }
    }
  }
  // From S and dP, which are on their way, to P and dS.
  __device__ void weigh() {
    const typename S::RowsAre& rows = places.rows(ring.place());
    // Both ends of the rows' intervals rise along the tile: its first and last row tell whether all see all keys.
    const bool masked = (!Lists && work.keys.first < rows.seen[S::kRows - 1].x) || work.keys.last > rows.seen[0].y;
    wgmma_wait<1>();
    pin(s);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float4 softmax = *reinterpret_cast<const float4*>(&rows.softmax[n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[n][i] = exp2_fast(fmaf(s[n][i], factor, i % 2 ? -softmax.z : -softmax.x)) * (i % 2 ? softmax.w : softmax.y);
    }
    if (masked) mask(rows, s);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) as_a<T>(weights[kk], s, kk);
    wgmma_wait<0>();
    pin(dp);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(&rows.delta[n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = s[n][i] * (dp[n][i] - (i % 2 ? delta.y : delta.x));
    }
    // Once more: a row that the keys do not concern may hold a NaN in dO, and 0 * NaN is one.
    if (masked) mask(rows, dp);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) as_a<T>(gradients[kk], dp, kk);
  }
};

template <typename T, int D, bool Lists>
__global__ void __launch_bounds__(NarrowDkvShape<D>::kThreads, NarrowDkvShape<D>::kCtasPerSm)
    narrow_dkv_kernel(const AttentionBackward p, const QueryLists lists, const Pieces pieces, float* partials) {
#if NSA_ON_HOPPER
  using S = NarrowDkvShape<D>;
  extern __shared__ char shared[];
  const std::uint32_t before = shared_address(shared);
  const NarrowPlaces<S> places{shared + ((before + 1023) / 1024 * 1024 - before)};
  const NarrowWork<S, Lists> work(p, lists, pieces);
  if (Lists && (work.keys.first >= work.keys.last || static_cast<int>(blockIdx.x) >= work.keys.pieces)) return;
  if (threadIdx.x == 0) places.start_barriers();
  __syncthreads();
  if (threadIdx.x < S::kProducers) {
    setmaxnreg_dec<S::kProducerRegisters, S::kCtasPerSm>();
    NarrowProducer<T, S, Lists>(work, places).run();
  } else {
    setmaxnreg_inc<S::kConsumerRegisters, S::kCtasPerSm>();
    NarrowConsumer<T, S, Lists>(work, places).run(partials);
  }
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
