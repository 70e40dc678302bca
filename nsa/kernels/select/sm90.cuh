// The choice of blocks on Hopper (Eq 8 to 11): what select/sm80.cuh does, by wgmma, for l = 2d and l' = 4d.
//
//   CTA: two or four consumer warpgroups with tokens of their own, and a producer; one per SM, tile after tile
//   S^T = K_cmp Q^T, 64 keys at a time from the ring of keys; Q of a tile stays in shared memory
//   producer warpgroup: warp 0 has TMA fill the ring, warps 1..3 copy Q and the statistics of its rows
//   consumer warpgroup: probabilities, summed over the heads in a thread's registers, go to shared memory [token][key];
//   after 128 keys each warp scores 32 blocks of its tokens at once, a lane a block
//
// Note [Products under exponentials]
// With D = 128 a product takes the tensor cores as long as its exponentials take their unit: neither may wait for the
// other. So a warpgroup has two sets of scores, and the product of one runs while the other one's exponentials are
// computed. The assembler would spread the product's instructions among the exponentials or these behind the wait for
// it: they depend on the scale, which is read anew (volatile) when all of the product has been started, and what they
// sum goes to shared memory before the wait. As in Note [Scores ahead] (sm90_dkv.cuh) no product is on its way where
// the loop begins anew.
// What is left are latencies, which warps hide: four warpgroups of half the columns do where a thread's scores and the
// rest fit 112 registers, and where the keys, which each warpgroup's products read for themselves, are not too wide.
#pragma once

#include <cuda.h>

#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/select/sm90_tiles.cuh"

namespace nsa::kernels::hopper {

// A whole warp, of which one lane works: the keys of every tile, stage by stage.
template <typename S>
__device__ inline void produce_keys(const SelectWork<S>& work, const SelectPlaces<S>& places, const CUtensorMap& k) {
  Ring<S::kStages> ring;
  for (Rounds round(work.tiles); round.more(); round.advance()) {
    const TokenTile tile = work.tile(round.number());
    for (int token = 0; token < tile.count;) {
      const DocumentTokens document(work.p, tile, token);
      const int keys = work.steps(document) * S::kStepKeys;
#pragma unroll 1
      for (int first = 0; first < keys; first += S::kKeys, ring.advance()) {
        if ((threadIdx.x & 31) != 0) continue;
        const int place = ring.place();
        mbarrier_wait(places.k_empty(place), ring.parity() ^ 1);
        mbarrier_arrive_expect_tx(places.k_full(place), S::Keys::kBytes);
        tma_load(places.k(place), &k, document.first_key + first, tile.group, tile.b, places.k_full(place));
      }
      token = document.end;
    }
  }
}

// kLoaders threads: Q of every tile that chooses by score, and the offsets of its columns. Padding is 0 and has p = 0,
// as have rows that see nothing.
template <typename T, typename S>
__device__ inline void produce_queries(const SelectWork<S>& work, const SelectPlaces<S>& places, unsigned loader) {
  constexpr unsigned kChunks = S::Dk / 8, kStep = S::kLoaders / kChunks, kColumns = S::kWarpgroups * S::kColumns;
  const Select& p = work.p;
  const unsigned chunk = loader % kChunks;
  const int heads = p.Hq / p.G;
  struct Source {
    int token, head;  // of the tile, of the group
    __device__ explicit Source(unsigned column) {
      const unsigned own = column % S::kColumns, n8 = own / 8;
      token = column / S::kColumns * S::kGroupTokens + n8 / S::kPairs * 4 + own % 8 / 2;
      head = n8 % S::kPairs * 2 + own % 2;
    }
  };
  Ring<S::kQStages> ring;
  for (Rounds round(work.tiles); round.more(); round.advance()) {
    const TokenTile tile = work.tile(round.number());
    if (!work.scored(tile)) continue;
    const int place = ring.place();
    mbarrier_wait(places.q_empty(place), ring.parity() ^ 1);
    const T* q = static_cast<const T*>(p.q.data) + tile.b * p.q.batch + tile.first * p.q.token +
                 tile.group * heads * p.q.head + chunk * 8;
#pragma unroll 1
    for (unsigned column = loader / kChunks; column < kColumns; column += kStep) {
      const Source source(column);
      const bool valid = source.head < heads && source.token < tile.count;
      cp_async(S::Queries::at(places.q(place, column / S::kColumns), column % S::kColumns, chunk),
               valid ? q + source.token * p.q.token + source.head * p.q.head : q, valid);
    }
    cp_async_commit();
#pragma unroll 1
    for (unsigned column = loader; column < kColumns; column += S::kLoaders) {
      const Source source(column);
      float2 stats{0, 0};
      if (source.head < heads && source.token < tile.count) {
        const std::int64_t row = static_cast<std::int64_t>(tile.b) * p.Hq + tile.group * heads + source.head;
        stats = reinterpret_cast<const float2*>(p.stats)[row * p.S + tile.first + source.token];
      }
      places.offsets(place)[column] = stats.y == 0 ? -INFINITY : -(stats.x + log2f(stats.y));
    }
    cp_async_wait<0>();
    fence_proxy_async();
    mbarrier_arrive(places.q_full(place));
    ring.advance();
  }
}

template <typename T, typename S>
__device__ inline void consume(const SelectWork<S>& work, const SelectPlaces<S>& places, int warpgroup) {
  const Select& p = work.p;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31, want = p.geometry.n - 3;
  const int number_of_barrier = 1 + warpgroup;
  const int first_own = warpgroup * S::kGroupTokens + warp * S::kWarpTokens;  // the tokens whose best it keeps
  Entry* const lists = places.lists(first_own);
  const float* const own_row = places.probabilities(first_own) + lane * 4;
  float* const own_place =
      places.probabilities(warpgroup * S::kGroupTokens + lane % 4) + warp * 16 + lane / 4;  // of its sums
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) mbarrier_arrive(barrier);
  };
  float s[2][S::kTiles][4], offset[S::kTiles][2];
  Ring<S::kQStages> q_ring;
  Ring<S::kStages> ring;
  int q = 0;
  // The next 64 keys: each of them is waited for, started and finished in turn.
  const auto await = [&] { mbarrier_wait(places.k_full(ring.place()), ring.parity()); };
  const auto start = [&](float(&c)[S::kTiles][4]) {
    const int k = uniform(places.k(ring.place()));
    ring.advance();
    pin(c);
    wgmma_fence();
    product_of_columns<T, S::Dk / 16>(c, typename S::Keys(), k, typename S::Queries(), q);
    wgmma_commit();
  };
  const auto finish = [&](float(&c)[S::kTiles][4]) {
    wgmma_wait<0>();
    pin(c);
    release(places.k_empty(ring.last().place()));
  };
  // Rows g, g + 8 of the warp's 16 keys; 2^(q.k * scale - maximum) / sum.
  const auto weigh = [&](const float(&c)[S::kTiles][4], int first_key) {
    const float scale = *places.scale();
#pragma unroll
    for (int quad = 0; quad < S::kQuads; ++quad)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = 0;
#pragma unroll
        for (int x = 0; x < S::kPairs * 2; ++x) {
          const int n8 = quad * S::kPairs + x / 2, e = x % 2;
          sum += exp2_fast(fmaf(c[n8][half * 2 + e], scale, offset[n8][e]));
        }
        own_place[quad * 4 * S::kPitch + first_key + half * 8] = sum;
      }
  };
#pragma unroll 1
  for (Rounds round(work.tiles); round.more(); round.advance()) {
    const TokenTile tile = work.tile(round.number());
    bool loaded = false;
#pragma unroll 1
    for (int token = 0; token < tile.count;) {
      const DocumentTokens document(p, tile, token);
      const int steps = uniform(work.steps(document));
      const auto done_with_q = [&] {
        if (!loaded || document.end < tile.count) return;
        release(places.q_empty(q_ring.place()));
        q_ring.advance();
        loaded = false;
      };
      BestOfWarp<S::kWarpTokens> best;
      if (steps > 0) {
        if (!loaded) {
          mbarrier_wait(places.q_full(q_ring.place()), q_ring.parity());
          const float* offsets = places.offsets(q_ring.place()) + warpgroup * S::kColumns + lane % 4 * 2;
#pragma unroll
          for (int n8 = 0; n8 < S::kTiles; ++n8)
#pragma unroll
            for (int e = 0; e < 2; ++e) offset[n8][e] = offsets[n8 * 8 + e];
          q = uniform(places.q(q_ring.place(), warpgroup));
          loaded = true;
        }
#pragma unroll
        for (int x = 0; x < S::kWarpTokens; ++x) {
          best.last[x] = document.last_choice(p, tile, first_own + x);
          best.least[x] = -1;
        }
        float before[S::kWarpTokens] = {};  // the probability of the key before the next 128
        // Eq 9: keys 4j-1 .. 4j+3 of block j, weights 1,2,2,2,1.
        const auto offer = [&](int step) {
          float score[S::kWarpTokens];
#pragma unroll
          for (int x = 0; x < S::kWarpTokens; ++x) {
            const float4 own = *reinterpret_cast<const float4*>(own_row + x * S::kPitch);
            const float neighbour = __shfl_sync(kWarp, own.w, lane + 31);  // lane - 1; the first lane: the last key
            const float first = lane == 0 ? before[x] : neighbour;
            before[x] = neighbour;
            score[x] = fmaf(2, own.x + own.y + own.z, first + own.w);
          }
          best.offer(lists, step * 32 + lane, score, want);
        };
        await();
        start(s[0]);
        await();
        finish(s[0]);
#pragma unroll 1
        for (int step = 0; step + 1 < steps; ++step) {
          start(s[1]);
          await();
          bar_sync_warpgroup(number_of_barrier);  // the last step's probabilities have been read
          weigh(s[0], 0);
          finish(s[1]);
          start(s[0]);
          await();
          weigh(s[1], S::kKeys);
          bar_sync_warpgroup(number_of_barrier);
          offer(step);
          finish(s[0]);
        }
        start(s[1]);
        bar_sync_warpgroup(number_of_barrier);
        weigh(s[0], 0);
        finish(s[1]);
        done_with_q();
        weigh(s[1], S::kKeys);
        bar_sync_warpgroup(number_of_barrier);
        offer(steps - 1);
        best.compact(lists, want);
      }
      done_with_q();
#pragma unroll 1
      for (int x = 0; x < S::kWarpTokens; ++x)
        if (document.has(first_own + x))
          write_choice(p, tile, first_own + x, document.block_of(p, tile, first_own + x), lists + x * kList);
      token = document.end;
    }
  }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    select_kernel(const __grid_constant__ Select p, const int tiles, const __grid_constant__ CUtensorMap k) {
#if NSA_ON_HOPPER
  extern __shared__ char shared[];
  const std::uint32_t before = shared_address(shared);
  const SelectPlaces<S> places{shared + ((before + S::kAlignment - 1) / S::kAlignment * S::kAlignment - before)};
  const SelectWork<S> work{p, tiles};
  if (threadIdx.x == 0) {
    places.start_barriers();
    *places.scale() = p.scale;
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec<S::kProducerRegisters>();
    if (threadIdx.x < 32)
      produce_keys<S>(work, places, k);
    else
      produce_queries<T, S>(work, places, threadIdx.x - 32);
  } else {
    setmaxnreg_inc<S::kConsumerRegisters>();
    consume<T, S>(work, places, uniform(threadIdx.x / 128 - 1));
  }
#else
  __trap();  // never launched: plan_select says mma.sync where this is the code
#endif
}

}  // namespace nsa::kernels::hopper
