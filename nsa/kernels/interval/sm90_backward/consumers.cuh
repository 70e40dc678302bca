// The consumer warpgroups of the backward pass over intervals (backward.cuh).
//
// Note [Ends under products]
// What stands between the products of a tile runs under others: dS under dK of the tile before (and the end of dV,
// which holds the warp until the tensor cores take it), the hand-over of the tile before's dQ under S of the next one,
// that one's exponentials under its dP. dQ comes a tile late, so that no warpgroup waits for the other one's dS and the
// two drift apart. No product is on its way where the loop begins anew, see Note [Scores ahead] (sm90_dkv.cuh).
#pragma once

#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/interval/sm90_backward/producers.cuh"

namespace nsa::kernels::hopper {

template <typename T, typename S>
class IntervalConsumer {
 public:
  __device__ IntervalConsumer(const AttentionBackward& problem, const IntervalBackwardWork<S>& all,
                              const IntervalBackwardPlaces<S>& addresses, IntervalBackwardShared<S>& common,
                              const IntervalRows* descriptions)
      : p(problem),
        work(all),
        places(addresses),
        shared(common),
        rows(descriptions),
        warpgroup(uniform(static_cast<int>(threadIdx.x) / 128 - 1)),
        warp(static_cast<int>(threadIdx.x) / 32 % 4),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    IntervalItems<S> items(places, shared);
    for (item = items.next(); item.pair >= 0; item = items.next()) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) dk[n][i] = dv[n][i] = 0.f;
      mbarrier_wait(places.keys_full(), keys.parity());
      keys.advance();
      first_scores();
      const int last = item.count() - 1;
      if (last == 0) {
        step<true, false>();
      } else {
        step<true, true>();
#pragma unroll 1
        for (int i = 1; i < last; ++i) step<false, true>();
        step<false, false>();
      }
      const Turn turn = turn_of(q.last());
      float dq[kHalf / 8][4];
      start_dk(q.last());
      start_dq(dq);
      wgmma_wait<0>();
      pin(dk);
      pin(dq);
      mbarrier_arrive(places.q_empty(q.last().place()));
      release(places.ds_empty(ds.last().place()));
      release(places.keys_empty());
      hand_over(dq, turn);
      end();
    }
  }

 private:
  static constexpr int D = S::D, kTiles = S::kRows / 8, kSteps = S::kRows / 16, kHalf = D / 2;
  const AttentionBackward& p;
  const IntervalBackwardWork<S>& work;
  const IntervalBackwardPlaces<S>& places;
  IntervalBackwardShared<S>& shared;
  const IntervalRows* const rows;  // in the places of Q
  const int warpgroup, warp, lane;
  IntervalItem item;
  Ring<S::kQStages> q;
  Ring<S::kOStages> o;
  Ring<S::kDsStages> ds;
  Ring<1> keys, handed;
  float dk[D / 8][4], dv[D / 8][4], s[kTiles][4], dp[kTiles][4];
  std::uint32_t weights[kSteps][4];  // P^T of one tile
  bool masked;

  __device__ void release(std::uint32_t barrier) const {
    if (lane == 0) mbarrier_arrive(barrier);
  }
  __device__ int first_key() const { return item.keys * S::kKeys + warpgroup * 64; }
  __device__ float4* key_sums() const { return work.key_sums(item.pair, item.keys, item.piece) + (threadIdx.x - 128); }
  __device__ int* key_turn() const { return work.plan.key_turns + item.pair * work.plan.key_tiles + item.keys; }

  __device__ void end() {
    const bool in_turn = work.plan.key_slots == 1;
    if (in_turn && item.piece > 0) {
      wait_for_turn(key_turn(), item.piece);
      const float4* from = key_sums();
#pragma unroll
      for (int n = 0; n < D / 8; ++n, from += S::kConsumers) {
        const float4 x = __ldcg(from), y = __ldcg(from + D / 8 * S::kConsumers);
        dk[n][0] += x.x, dk[n][1] += x.y, dk[n][2] += x.z, dk[n][3] += x.w;
        dv[n][0] += y.x, dv[n][1] += y.y, dv[n][2] += y.z, dv[n][3] += y.w;
      }
    }
    if (in_turn ? item.piece < item.pieces - 1 : item.pieces > 1) {
      float4* to = key_sums();
#pragma unroll
      for (int n = 0; n < D / 8; ++n, to += S::kConsumers) {
        to[0] = make_float4(dk[n][0], dk[n][1], dk[n][2], dk[n][3]);
        to[D / 8 * S::kConsumers] = make_float4(dv[n][0], dv[n][1], dv[n][2], dv[n][3]);
      }
      if (!in_turn) return;
      bar_sync(1, S::kConsumers);
      if (threadIdx.x == 128) pass_turn(key_turn(), item.piece + 1);
      return;
    }
    const int b = item.pair / work.f.G, group = item.pair - b * work.f.G;
    const auto store = [&](const Rows& x, float scale, float(&c)[D / 8][4]) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = first_key() + warp * 16 + lane / 4 + 8 * half;
        T* const row = static_cast<T*>(x.data) + b * x.batch + key * x.token + group * x.head;
        store_row<T>(key < work.f.N ? row : nullptr, c, half, scale, false);
      }
    };
    store(p.dk, work.f.scale, dk);
    store(p.dv, 1.f, dv);
  }

  // ---- products, started

  __device__ void start_s() {
    product_of_columns<T, D / 16>(s, typename S::K(), anew(places.k() + warpgroup * 64 * 128), typename S::Q(),
                                  anew(places.q(q.place())));
    wgmma_commit();
  }
  __device__ void start_dp() {
    product_of_columns<T, D / 16>(dp, typename S::K(), anew(places.v() + warpgroup * 64 * 128), typename S::Q(),
                                  anew(places.o(o.place())));
    wgmma_commit();
  }
  __device__ void start_dv() {
    const std::uint32_t rows = anew(places.o(o.place()));
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) Wgmma<T, D>::values(dv, weights[kk], S::Q::rows(rows, kk));
    wgmma_commit();
  }
  // Of the tile whose dS^T is the last one.
  __device__ void start_dk(Ring<S::kQStages> of) {
    mbarrier_wait(places.ds_full(ds.last().place(), warpgroup), ds.last().parity());
    pin(dk);
    wgmma_fence();
    const std::uint32_t gradients = anew(places.ds(ds.last().place()) + warpgroup * 64 * 128);
    const std::uint32_t rows = anew(places.q(of.place()));
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk)
      Wgmma<T, D>::template values<1, false>(dk, S::Ds::columns(gradients, kk), S::Q::rows(rows, kk));
    wgmma_commit();
  }
  __device__ void start_dq(float (&dq)[kHalf / 8][4]) {
    mbarrier_wait(places.ds_full(ds.last().place(), 1 - warpgroup), ds.last().parity());
    pin(dq);
    wgmma_fence();
    const std::uint32_t gradients = anew(places.ds(ds.last().place())),
                        // half of them: a slab, or within one
        columns = anew(places.k() + warpgroup * (D == 128 ? S::kKeys * 128 : kHalf * 2));
    Wgmma<T, kHalf>::template values<0, true>(dq, S::Ds::rows(gradients, 0), S::K::rows(columns, 0));
#pragma unroll
    for (int kk = 1; kk < S::kKeys / 16; ++kk)
      Wgmma<T, kHalf>::template values<1, true>(dq, S::Ds::rows(gradients, kk), S::K::rows(columns, kk));
    wgmma_commit();
  }

  // ---- between products; the tile of rows is the one in Q's place

  __device__ void mask(float (&c)[kTiles][4]) const {
    const int own_key = first_key() + warp * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int2 end = *reinterpret_cast<const int2*>(&rows[q.place()].end[n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int before_end = (i % 2 ? end.y : end.x) - 1 - own_key - i / 2 * 8;  // keys
        if (static_cast<unsigned>(before_end) >= static_cast<unsigned>(work.plan.seen)) c[n][i] = 0.f;
      }
    }
  }
  // In four chains.
  __device__ static bool are_finite(const float (&c)[kTiles][4]) {
    float nothing[4] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) nothing[i] = fmaf(c[n][i], 0.f, nothing[i]);
    return nothing[0] + nothing[1] + nothing[2] + nothing[3] == 0.f;
  }
  __device__ void weigh() {  // S^T to P^T
    const float factor = work.f.scale * kLog2E;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float4 softmax = *reinterpret_cast<const float4*>(&rows[q.place()].softmax[n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[n][i] = exp2_fast(fmaf(s[n][i], factor, i % 2 ? -softmax.z : -softmax.x)) * (i % 2 ? softmax.w : softmax.y);
    }
    masked = shared.masked[q.place()][warpgroup];
    if (masked) mask(s);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) as_a<T>(weights[kk], s, kk);
  }
  __device__ void differentiate() {  // dP^T to dS^T, in shared memory
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(&rows[q.place()].delta[n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = s[n][i] * (dp[n][i] - (i % 2 ? delta.y : delta.x));
    }
    // Once more where it matters: a row that the keys do not concern may hold a NaN in dO, and 0 * NaN is one.
    if (masked && !are_finite(dp)) mask(dp);
    // 16 rows further is two chunks further: of the swizzled place it changes two bits.
    const int own = static_cast<int>(anew(lane));
    const std::uint32_t place = S::Ds::at(anew(places.ds(ds.place())), warpgroup * 64 + warp * 16 + own % 16, own / 16);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) {
      std::uint32_t gradients[4];
      as_a<T>(gradients, dp, kk);
      stmatrix(place ^ static_cast<std::uint32_t>(kk * 32), gradients);
    }
  }
  // What a consumer wants to know of a tile's turn, whose rows stand in a place of Q.
  struct Turn {
    bool first = true, last = true;
  };
  __device__ Turn turn_of(Ring<S::kQStages> of) const {
    if constexpr (S::kOneTile) return {};
    return {shared.turn[of.place()].first, shared.turn[of.place()].last};
  }
  // To the warp that hands it over.
  __device__ void hand_over(float (&dq)[kHalf / 8][4], const Turn& turn) {
    mbarrier_wait(places.taken(warpgroup), handed.parity() ^ 1);
    if (turn.last) {
      if (!turn.first) add_others(dq);
      stage_rounded(dq);
    } else {
      const std::uint32_t own = own_staging();
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n)
        st_shared(own + n * 128 * 16, make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]));
    }
    fence_proxy_async();
    handed.advance();
    mbarrier_arrive(places.staged(warpgroup));
  }
  // This thread's first quad of a sum.
  __device__ std::uint32_t own_staging() const {
    const std::uint32_t thread = anew(threadIdx.x);
    return places.staging(static_cast<int>(thread) / 128 - 1) + thread % 128 * 16;
  }
  __device__ void add_others(float (&dq)[kHalf / 8][4]) const {
    mbarrier_wait(places.turn_come(), handed.parity());
    const std::uint32_t own = own_staging();
#pragma unroll
    for (int n = 0; n < kHalf / 8; ++n) {
      const float4 x = ld_shared(own + n * 128 * 16);
      dq[n][0] += x.x, dq[n][1] += x.y, dq[n][2] += x.z, dq[n][3] += x.w;
    }
    bar_sync(2 + warpgroup, 128);  // what is rounded goes where other threads' share stood
  }
  __device__ void stage_rounded(float (&dq)[kHalf / 8][4]) const {
    constexpr bool kOwnSlab = kHalf == 64;
    const int thread = static_cast<int>(anew(threadIdx.x)), half = thread / 128 - 1;
    const std::uint32_t place =
        Slab<S::kRows, 64>::at(places.staging(kOwnSlab ? half : 0), thread % 128 / 32 * 16 + thread % 16,
                               (kOwnSlab ? 0 : half * kHalf / 8) + thread % 32 / 16);
#pragma unroll
    for (int n = 0; n < kHalf / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dq[n][i] *= work.f.scale;
#pragma unroll
    for (int kk = 0; kk < kHalf / 16; ++kk) {
      std::uint32_t rounded[4];
      as_a<T>(rounded, dq, kk);
      stmatrix(place ^ static_cast<std::uint32_t>(kk * 32), rounded);
    }
  }

  __device__ void first_scores() {
    mbarrier_wait(places.q_full(q.place()), q.parity());
    mbarrier_wait(places.o_full(o.place()), o.parity());
    pin(s);
    pin(dp);
    wgmma_fence();
    start_s();
    start_dp();
    finish_scores();
  }
  // From S^T and dP^T, which are on their way, to P^T and dP^T.
  __device__ void finish_scores() {
    wgmma_wait<1>();
    pin(s);
    weigh();
    wgmma_wait<0>();
    pin(dp);
  }
  // From P^T and dP^T of a tile to those of the next one, and dQ and dK of the one before, see Note
  // [Ends under products].
  template <bool First, bool More>
  __device__ void step() {
    Turn turn;  // of the tile before
    if constexpr (!First) turn = turn_of(q.last());
    pin(dv);
    wgmma_fence();
    start_dv();
    if constexpr (!First) start_dk(q.last());
    mbarrier_wait(places.ds_empty(ds.place()), ds.parity() ^ 1);
    differentiate();
    fence_proxy_async();
    __syncwarp();
    release(places.ds_full(ds.place(), warpgroup));
    float dq[kHalf / 8][4];
    if constexpr (!First) start_dq(dq);
    if constexpr (More) {
      q.advance();
      mbarrier_wait(places.q_full(q.place()), q.parity());
      pin(s);
      wgmma_fence();
      start_s();
    }
    wgmma_wait<More ? 1 : 0>();
    pin(dv);
    pin(dk);
    release(places.o_empty(o.place()));
    o.advance();
    if constexpr (!First) {
      pin(dq);
      mbarrier_arrive(places.q_empty((More ? q.last() : q).last().place()));
      release(places.ds_empty(ds.last().place()));
      hand_over(dq, turn);
    }
    ds.advance();
    if constexpr (More) {
      mbarrier_wait(places.o_full(o.place()), o.parity());
      pin(dp);
      wgmma_fence();
      start_dp();
      finish_scores();
    } else {
      q.advance();
    }
  }
};

}  // namespace nsa::kernels::hopper
