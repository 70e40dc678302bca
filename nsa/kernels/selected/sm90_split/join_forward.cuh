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
#include "nsa/kernels/selected/sm90_split/join_forward_parts.cuh"

namespace nsa::kernels::hopper {

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
