// dQ over intervals of keys (compressed, window) by wgmma; what interval/sm80_dq.cuh does.
//
//   CTA of one warpgroup with 64 rows (token, head), two or three per SM, or, where shared memory has no
//   room for two (Dk 192), of two warpgroups; keys in tiles of 64 for all of them
//   S = Q K^T and dP = dO V^T from shared memory; dQ += dS K with dS in registers
//
// A tile's K is wanted a step longer than its V, by the sum. So of two stages the one that the last tile leaves is free
// in the middle of a step, after a barrier of its own; of three one is free when the step begins. (One warpgroup with
// three stages: no faster.)
#pragma once

#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/rows.cuh"
#include "nsa/kernels/device/slab.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/interval/row_tile.cuh"

namespace nsa::kernels::hopper {

template <int Dk_, int Dv_>
struct DqShape {
  static constexpr int Dk = Dk_, Dv = Dv_;
  static constexpr int kWarpgroups = Dk > 128 ? 2 : 1, kThreads = kWarpgroups * 128;
  static constexpr int kCtasPerSm = Dk > 128 ? 1 : Dk > 64 ? 2 : 3;  // per SM, as the registers allow
  static constexpr int kRows = kWarpgroups * 64, kKeys = 64, kKStages = kWarpgroups + 1, kVStages = 2;
  using Q = Slab<kRows, Dk>;
  using O = Slab<kRows, Dv>;
  using K = Slab<kKeys, Dk>;
  using V = Slab<kKeys, Dv>;
  using Work = RowTile<kRows, kKeys>;
  // Where the rows of Q and dO start, as Slab::gather takes them.
  struct Offsets {
    int q[kRows], o[kRows];
  };
  static constexpr int kSharedBytes =
      1024 + Q::kBytes + O::kBytes + kKStages * K::kBytes + kVStages * V::kBytes;  // 1024: to align
};

// Where a CTA's tiles are in shared memory. Tiles of keys take turns in the stages.
template <typename S>
struct DqPlaces {
  char* shared;
  std::uint32_t q, o, first_k, first_v;

  __device__ explicit DqPlaces(char* memory)
      : shared(memory),
        q((shared_address(memory) + 1023) & ~1023u),
        o(q + S::Q::kBytes),
        first_k(o + S::O::kBytes),
        first_v(first_k + S::kKStages * S::K::kBytes) {}
  __device__ std::uint32_t k(int tile) const { return first_k + tile % S::kKStages * S::K::kBytes; }
  __device__ std::uint32_t v(int tile) const { return first_v + tile % S::kVStages * S::V::kBytes; }
  // Q's, for dQ once Q is used up.
  __device__ char* staging() const { return shared + (q - shared_address(shared)); }
};

// All threads: Q and dO of the CTA's rows.
template <typename T, typename S>
__device__ inline void load_rows(const AttentionBackward& p, const typename S::Work& work, const DqPlaces<S>& places,
                                 typename S::Offsets& offsets) {
  const Rows &q = p.forward.q, &dout = p.dout;
  if (threadIdx.x < S::kRows) {
    const RowOrder order{work.heads, nullptr, nullptr, 0, work.rows};
    const Row row = order.row(work.first_row + static_cast<int>(threadIdx.x));
    offsets.q[threadIdx.x] = offset_of(row, static_cast<int>(q.token / 8), static_cast<int>(q.head / 8));
    offsets.o[threadIdx.x] = offset_of(row, static_cast<int>(dout.token / 8), static_cast<int>(dout.head / 8));
  }
  __syncthreads();
  S::Q::template gather<S::kThreads>(places.q, group_rows<T>(q, work.b, work.group, work.heads.h), offsets.q);
  S::O::template gather<S::kThreads>(places.o, group_rows<T>(dout, work.b, work.group, work.heads.h), offsets.o);
}

// All threads: K and V of one tile of keys after the other.
template <typename T, typename S>
class DqKeys {
 public:
  __device__ DqKeys(const AttentionForward& problem, const typename S::Work& all, const DqPlaces<S>& addresses)
      : p(problem), work(all), places(addresses), k(group_keys(p.k)), v(group_keys(p.v)) {}

  __device__ void load(int tile) const {
    if (tile < work.key_tiles()) {
      const int first = work.first_key(tile);
      S::K::template load<S::kThreads>(places.k(tile), k, static_cast<int>(p.k.token), first, work.end);
      S::V::template load<S::kThreads>(places.v(tile), v, static_cast<int>(p.v.token), first, work.end);
    }
    cp_async_commit();
  }

 private:
  const AttentionForward& p;
  const typename S::Work& work;
  const DqPlaces<S>& places;
  const T *const k, *const v;

  __device__ const T* group_keys(const Rows& x) const {
    return static_cast<const T*>(x.data) + work.b * x.batch + work.group * x.head;
  }
};

// A warpgroup, which has 64 rows. Its arrays are variables of run(), handed to the steps, as those of DkvWarpgroup
// (sm90_dkv.cuh) are.
template <typename T, typename S>
class DqWarpgroup {
 public:
  __device__ DqWarpgroup(const AttentionBackward& problem, const typename S::Work& all, const DqPlaces<S>& addresses,
                         const DqKeys<T, S>& tiles)
      : p(problem),
        work(all),
        places(addresses),
        keys(tiles),
        own(p, work),
        factor(p.forward.scale * kLog2E),
        own_rows(uniform(static_cast<int>(threadIdx.x) / 128) * 64 * 128) {}

  __device__ void run() {
    Sum dq = {};
    Scores s, dp;
    Rounded gradients;  // dS of one tile
    if (work.key_tiles() > 0) {
      wait_for_keys();
      keys.load(1);
      pin(s);
      pin(dp);
      wgmma_fence();
      start_scores(s, dp, 0);
      weigh(0, s, dp, gradients);
    }
    for (int tile = 1; tile < work.key_tiles(); ++tile) {
      wait_for_keys();  // this tile's; of the last one nobody wants V any more
      pin(dq);
      pin(s);
      pin(dp);
      wgmma_fence();
      start_sum(dq, gradients, tile - 1);
      start_scores(s, dp, tile);
      if constexpr (S::kKStages > 2) keys.load(tile + 1);
      wgmma_wait<2>();
      pin(dq);
      if constexpr (S::kKStages == 2) {
        __syncthreads();  // the last tile's K is used up
        keys.load(tile + 1);
      }
      weigh(tile, s, dp, gradients);
    }
    if (work.key_tiles() > 0) {
      pin(dq);
      wgmma_fence();
      start_sum(dq, gradients, work.key_tiles() - 1);
      wgmma_wait<0>();
      pin(dq);
    }
    cp_async_wait<0>();
    __syncthreads();
    const float by = p.forward.scale;
    const float scale[2] = {kNormalisesLate<T> ? by * own.inverse[0] : by,
                            kNormalisesLate<T> ? by * own.inverse[1] : by};
    store_dq<T, typename S::Q>(p, work, places.staging(), dq, scale);
  }

 private:
  static constexpr int kTiles = S::kKeys / 8, kSteps = S::kKeys / 16;
  using Sum = float[S::Dk / 8][4];
  using Scores = float[kTiles][4];
  using Rounded = std::uint32_t[kSteps][4];
  const AttentionBackward& p;
  const typename S::Work& work;
  const DqPlaces<S>& places;
  const DqKeys<T, S>& keys;
  const DqRows own;  // the thread's
  const float factor;
  const std::uint32_t own_rows;  // bytes behind the first of a tile of rows

  __device__ static void wait_for_keys() {
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads();
  }
  // As in Note [Scores ahead] (sm90_dkv.cuh), dP too: here the registers suffice.
  __device__ void start_scores(Scores& s, Scores& dp, int tile) const {
    product_of_columns<T, S::Dk / 16>(s, typename S::Q(), places.q + own_rows, typename S::K(), places.k(tile));
    wgmma_commit();
    product_of_columns<T, S::Dv / 16>(dp, typename S::O(), places.o + own_rows, typename S::V(), places.v(tile));
    wgmma_commit();
  }
  __device__ void start_sum(Sum& dq, const Rounded& gradients, int tile) const {
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) Wgmma<T, S::Dk>::values(dq, gradients[kk], S::K::rows(places.k(tile), kk));
    wgmma_commit();
  }
  // From S and dP, which are on their way, to dS.
  __device__ void weigh(int tile, Scores& s, Scores& dp, Rounded& gradients) const {
    wgmma_wait<1>();
    pin(s);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = exp2_fast(fmaf(s[n][i], factor, -own.origin[i / 2]));
        if constexpr (!kNormalisesLate<T>) s[n][i] *= own.inverse[i / 2];
      }
    wgmma_wait<0>();
    pin(dp);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= dp[n][i] - own.delta[i / 2];
    mask(work.first_key(tile), s);
#pragma unroll
    for (int kk = 0; kk < kSteps; ++kk) as_a<T>(gradients[kk], s, kk);
  }
  __device__ void mask(int first, Scores& s) const {
    if (work.all_see(first)) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
        if (key < own.begin[i / 2] || key >= own.end[i / 2]) s[n][i] = 0.f;
      }
  }
};

template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(DqShape<Dk, Dv>::kThreads, DqShape<Dk, Dv>::kCtasPerSm)
    dq_kernel(const AttentionBackward p) {
#if NSA_ON_HOPPER
  using S = DqShape<Dk, Dv>;
  extern __shared__ char shared[];
  __shared__ typename S::Offsets offsets;
  const auto work = S::Work::of_cta(p.forward);
  const DqPlaces<S> places(shared);
  load_rows<T>(p, work, places, offsets);
  const DqKeys<T, S> keys(p.forward, work, places);
  keys.load(0);
  DqWarpgroup<T, S>(p, work, places, keys).run();
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
