// Forward pass over intervals of keys (compressed, window) on Hopper: one CTA per SM takes tile after tile.
//
//   rows of a tile: 64 (token, head of the group) pairs a consumer warpgroup; keys in steps of Shape::kKeys
//   shared memory: Q [rows][Dk], one tile ahead where two fit; rings of K [keys][Dk] and V [keys][Dv]
//   producer warpgroup: warp 0 has TMA fill the rings, warps 1..3 copy the rows of Q
//                       (the h heads of a token are no box for TMA when h does not divide the rows)
//   consumer warpgroups: scores and output in registers; the weights take the scores' place
//
// Barriers: `full` when a place is filled, `empty` when every consumer warp has read it.
//
// Note [Three warpgroups]
// A consumer warpgroup does one thing at a time: Q*K^T, softmax, P*V. What keeps the tensor cores busy during a
// softmax are the two other warpgroups, which drift apart by themselves. Two warpgroups that also overlap their own
// softmax with their own P*V need a third more registers each, and were slower (history.md): a warp stands still while
// it starts products whose left operand is in registers, so the softmax hardly overlapped, and two chains hide less
// latency than three.
#pragma once

#include <cuda.h>

#include "nsa/kernels/device/gates.cuh"
#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/device/wgmma.cuh"
#include "nsa/kernels/interval/sm90_forward/tiles.cuh"

namespace nsa::kernels::hopper {

// Scores times this are exponents of 2.
__device__ inline float factor_of(const AttentionForward& p) { return p.scale * kLog2E; }

// One thread: K and V of every tile, step by step.
template <typename S>
__device__ inline void produce_keys(const Work<S>& work, const Places<S>& places, const CUtensorMap& k,
                                    const CUtensorMap& v) {
  Ring<S::kStages> ring;
  for (Rounds round(work.tiles); round.more(); round.advance()) {
    const TileOfRows tile = work.tile(round.number());
#pragma unroll 1
    for (int first = tile.begin; first < tile.end; first += S::kKeys, ring.advance()) {
      const int place = ring.place();
      mbarrier_wait(places.k_empty(place), ring.parity() ^ 1);
      mbarrier_arrive_expect_tx(places.k_full(place), S::kKBytes);
      tma_load(places.k(place), &k, first, tile.group, tile.b, places.k_full(place));
      mbarrier_wait(places.v_empty(place), ring.parity() ^ 1);
      mbarrier_arrive_expect_tx(places.v_full(place), S::kVBytes);
      tma_load(places.v(place), &v, first, tile.group, tile.b, places.v_full(place));
    }
  }
}

// kLoaders threads: Q of every tile. A thread always copies the same 16-byte chunk, of every kStep-th row.
template <typename T, typename S>
__device__ inline void produce_queries(const Work<S>& work, const Places<S>& places, int loader) {
  constexpr int kChunks = S::Dk / 8, kStep = S::kLoaders / kChunks;
  const AttentionForward& p = work.p;
  const int chunk = loader % kChunks, h = work.heads.h;
  const std::uint32_t column = chunk / 8 * (S::kRows * S::kSlabRow);
  Ring<S::kQStages> ring;
  for (Rounds round(work.tiles); round.more(); round.advance(), ring.advance()) {
    const TileOfRows tile = work.tile(round.number());
    const T* q = static_cast<const T*>(p.q.data) + tile.b * p.q.batch + tile.group * h * p.q.head + chunk * 8;
    mbarrier_wait(places.q_empty(ring.place()), ring.parity() ^ 1);
    const std::uint32_t destination = places.q(ring.place()) + column;
#pragma unroll 2
    for (int row = loader / kChunks; row < S::kRows; row += kStep) {
      const int r = tile.first_row + row;
      const bool valid = r < work.rows;
      const int t = work.heads.token(valid ? r : 0), j = work.heads.head(valid ? r : 0, t);
      cp_async(destination + row * S::kSlabRow + ((chunk ^ row) & 7) * 16, q + t * p.q.token + j * p.q.head, valid);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
    mbarrier_arrive(places.q_full(ring.place()));
  }
}

// What a thread of a consumer warpgroup knows of the warpgroup's 64 rows and of its own two: g, g + 8 of its warp's 16.
struct OwnRows {
  int begin[2], end[2];      // the keys that its rows see
  int open_begin, open_end;  // within these every row of the warpgroup sees every key
  unsigned sees = 0;         // bit i: row i sees any

  template <typename S>
  __device__ OwnRows(const Work<S>& work, int first_row) {
    const auto token = [&](int row) { return work.heads.token(min(row, work.rows - 1)); };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = token(first_row + own_row(half));
      begin[half] = work.interval.begin(t);
      end[half] = work.interval.end(t);
      sees |= (end[half] > begin[half]) << half;
    }
    open_begin = work.interval.begin(token(first_row + 63));
    open_end = work.interval.end(token(first_row));
  }

  // Among the warpgroup's 64.
  __device__ static int own_row(int half) {
    return static_cast<int>(threadIdx.x) / 32 % 4 * 16 + (threadIdx.x & 31) / 4 + half * 8;
  }

  // Scores of the keys from first_key on: what a row does not see becomes -inf.
  template <int N>
  __device__ void mask(float (&s)[N][4], int first_key) const {
    if (first_key >= open_begin && first_key + 8 * N <= open_end) return;
    const int first = first_key + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = begin[half] - first;
      const unsigned length = max(0, end[half] - begin[half]);
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (static_cast<unsigned>(8 * n + i - from) >= length) s[n][2 * half + i] = -INFINITY;
    }
  }
};

// A row of a warpgroup's tile.
struct RowPlace {
  int b, t, head;
  bool inside;  // false: no row of the problem, and this its last one

  template <typename S>
  __device__ RowPlace(const Work<S>& work, const TileOfRows& tile, int wanted) : b(tile.b) {
    const int row = min(wanted, work.rows - 1);
    t = work.heads.token(row), head = tile.group * work.heads.h + work.heads.head(row, t);
    inside = wanted < work.rows;
  }
};

// What the gated sum of a row takes from elsewhere: the gates, and of the other branches what store_row() would store.
template <typename T, int Dv>
struct OtherBranches {
  static constexpr int kOthers = kBranches - 1, kChunks = Dv / 32, kLine = 128 / static_cast<int>(sizeof(T));
  float gate[kBranches];
  uint4 values[kOthers][kChunks];

  // Into L2: each of a row's four threads asks for a line.
  __device__ static void prefetch(const Combine& p, const RowPlace& x) {
    const int own = threadIdx.x & 3, branch = own % kOthers, line = own / kOthers;
    if (line < Dv / kLine) prefetch_line(chunk_of<T>(p.branch[branch], x.b, x.t, x.head, line * kLine / kEight));
  }
  __device__ void load(const Combine& p, const RowPlace& x) {
    if (p.gates_fp32)
      load_gates<float>(gate, p, x.b, x.t, x.head / (p.Hq / p.G));
    else
      load_gates<T>(gate, p, x.b, x.t, x.head / (p.Hq / p.G));
#pragma unroll
    for (int n = 0; n < kChunks; ++n)
#pragma unroll
      for (int i = 0; i < kOthers; ++i)
        values[i][n] = *chunk_of<T>(p.branch[i], x.b, x.t, x.head, n * 4 + static_cast<int>(threadIdx.x & 3));
  }
  // The row itself, as store_row() does, and the sum.
  __device__ void store(const Combine& p, const RowPlace& x, const float (&c)[Dv / 8][4], int half, float scale,
                        bool zero) const {
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const uint4 own = row_chunk<T>(c, n, half, scale, zero);
      float sum[kEight] = {};
#pragma unroll
      for (int i = 0; i < kOthers; ++i) add_gated<T>(sum, gate[i], values[i][n]);
      add_gated<T>(sum, gate[kOthers], own);
      if (!x.inside) continue;
      const int chunk = n * 4 + static_cast<int>(threadIdx.x & 3);
      store_whole(chunk_of<T>(p.branch[kOthers], x.b, x.t, x.head, chunk), own);
      store_whole(chunk_of<T>(p.o, x.b, x.t, x.head, chunk), narrowed<T>(sum));
    }
  }
};

// Writes a warpgroup's 64 rows from first_row on. `sees`: bit i is set when this thread's row i sees any key. `sum`:
// for all branches, Combines.
template <typename T, bool Combines, typename S>
__device__ inline void write_rows(const Work<S>& work, const Combine& sum, const TileOfRows& tile, int first_row,
                                  unsigned sees, const RunningSoftmax& softmax, const float (&o)[S::Dv / 8][4]) {
  const AttentionForward& p = work.p;
  // Asked for before the first store, over which nvcc cannot move a load.
  OtherBranches<T, S::Dv> others[2];
  if constexpr (Combines)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      others[half].load(sum, RowPlace(work, tile, first_row + OwnRows::own_row(half)));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const RowPlace x(work, tile, first_row + OwnRows::own_row(half));
    const float total = total_of(softmax.quad_total<T>(half, factor_of(p)), sees >> half & 1);
    if constexpr (Combines) {
      others[half].store(sum, x, o, half, normaliser(total), total == 0.f);
    } else {
      T* const out = static_cast<T*>(p.o.data) + x.b * p.o.batch + x.t * p.o.token + x.head * p.o.head;
      store_row(x.inside ? out : nullptr, o, half, normaliser(total), total == 0.f);
    }
    if (x.inside && (threadIdx.x & 3) == 0) {
      const std::int64_t at = (static_cast<std::int64_t>(x.b) * p.Hq + x.head) * p.S + x.t;
      reinterpret_cast<float2*>(p.stats)[at] = stored_statistics(softmax.maximum[half], total, factor_of(p));
    }
  }
}

template <typename T, bool Combines, typename S>
__device__ inline void consume(const Work<S>& work, const Combine& sum, const Places<S>& places, int warpgroup) {
  constexpr int kN = S::kKeys / 8, kSteps = S::kKeys / 16, kO = S::Dv / 8;
  const int lane = threadIdx.x & 31;
  const float factor = factor_of(work.p);
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) mbarrier_arrive(barrier);
  };
  Ring<S::kQStages> q_ring;
  Ring<S::kStages> ring;
#pragma unroll 1
  for (Rounds round(work.tiles); round.more(); round.advance(), q_ring.advance()) {
    const TileOfRows tile = work.tile(round.number());
    const int steps = uniform(work.steps(tile)), first_row = tile.first_row + warpgroup * 64;
    const OwnRows own(work, first_row);
    RunningSoftmax softmax;
    float s[kN][4], o[kO][4] = {};
    mbarrier_wait(places.q_full(q_ring.place()), q_ring.parity());
    const int q = uniform(places.q(q_ring.place()) + warpgroup * 64 * S::kSlabRow);
#pragma unroll 1
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const int place = ring.place(), k = uniform(places.k(place)), v = uniform(places.v(place));
      if constexpr (Combines)
        if (step == steps - 1)
          for (int half = 0; half < 2; ++half)
            OtherBranches<T, S::Dv>::prefetch(sum, RowPlace(work, tile, first_row + OwnRows::own_row(half)));
      mbarrier_wait(places.k_full(place), ring.parity());
      pin(s);
      wgmma_fence();
#pragma unroll
      for (int d = 0; d < S::Dk / 16; ++d) {
        const int slab = d / 4, within = d % 4 * 32;
        const std::uint64_t a = wgmma_descriptor(q, 16, 1024) + (slab * S::kRows * S::kSlabRow + within) / 16;
        const std::uint64_t b = wgmma_descriptor(k, 16, 1024) + (slab * S::kKeys * S::kSlabRow + within) / 16;
        if (d == 0)
          Wgmma<T, S::kKeys>::template keys<0>(s, a, b);
        else
          Wgmma<T, S::kKeys>::template keys<1>(s, a, b);
      }
      wgmma_commit();
      wgmma_wait<0>();
      pin(s);
      release(places.k_empty(place));

      own.mask(s, tile.begin + step * S::kKeys);
      float rescale[2];
      softmax.update_in_chains<T>(s, factor, rescale);
      std::uint32_t weights[kSteps][4];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) as_a<T>(weights[i], s, i);
      rescale_rows(o, rescale);

      mbarrier_wait(places.v_full(place), ring.parity());
      pin(o);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        Wgmma<T, S::Dv>::values(o, weights[i], wgmma_descriptor(v, S::kKeys * S::kSlabRow, 1024) + i * S::kSlabRow);
      wgmma_commit();
      wgmma_wait<0>();
      pin(o);
      release(places.v_empty(place));
    }
    release(places.q_empty(q_ring.place()));
    write_rows<T, Combines>(work, sum, tile, first_row, own.sees, softmax, o);
  }
}

// Combines: the last branch, whose rows are written with the gated sum of all.
template <typename T, bool Combines, typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    attention_forward_kernel(const __grid_constant__ AttentionForward p, const __grid_constant__ Combine sum,
                             const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v) {
#if NSA_ON_HOPPER
  extern __shared__ char shared[];
  const Places<S> places{(shared_address(shared) + S::kAlignment - 1) / S::kAlignment * S::kAlignment};
  const Work<S> work(p);
  if (threadIdx.x == 0) places.start_barriers();
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec<S::kProducerRegisters>();
    if (threadIdx.x == 0)
      produce_keys<S>(work, places, k, v);
    else if (threadIdx.x >= 32)
      produce_queries<T, S>(work, places, static_cast<int>(threadIdx.x) - 32);
  } else {
    setmaxnreg_inc<S::kConsumerRegisters>();
    consume<T, Combines>(work, sum, places, uniform(threadIdx.x / 128 - 1));
  }
#else
  __trap();  // never launched: Device::hopper is false where this is the code
#endif
}

}  // namespace nsa::kernels::hopper
