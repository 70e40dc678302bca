// The selected branch for neighbouring queries together: the rows (token, head) of a tile walk through the blocks that
// any of their tokens chose, each row with a mask of its own.
//
// Against parts.cuh: nothing is written in between and no list is needed, but a row also computes with blocks that only
// its neighbours chose. So it pays where the choices are few (short sequences) or alike (a trained model's neighbours
// share most blocks; ways.hpp). The same walk gives the forward pass (o, statistics) and dQ.
//
//   CTA: a producer warpgroup and three consumer warpgroups of 64 rows each (two for dQ of 192/128);
//   one per SM, tile after tile
//   producers: warp 0 has TMA fill the ring of K and V, 64 keys a place; the others find the next tile's
//   blocks together (JointChoice), and each copies Q (and dO) of one consumer warpgroup, a tile ahead where two fit
//   consumer warpgroups: scores and sums in registers; as in Note [Three warpgroups]
//   (interval/sm90_forward/forward.cuh)
//
// Barriers: `full` when a place is filled, `empty` when every warp that reads it has.
//
// Note [One stream]
// K and V come from L2, whose speed a warpgroup with keys of its own would be bound by. So the warpgroups share one
// stream of blocks, the union of what they chose; a warpgroup computes with those that its own rows chose and passes
// the others. It passes them only when they have come: who runs ahead of the ring would take one of its rounds for
// another. How far warpgroups drift apart, and so how well one computes while another passes, is the ring's length.
#pragma once

#include <cuda.h>

#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/rows.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/selected/sm90_union/joint_tiles.cuh"

namespace nsa::kernels::hopper {

// What the kernel is given. `out`: o, or dq. `dout` and `delta` are for the backward pass. `ways`: by default all rows
// are computed.
struct Joint {
  AttentionForward forward;
  Rows dout;
  const float* delta = nullptr;
  Rows out;
  bool adds = false;  // to what `out` holds
  Ways ways;
  int second_rows = 0;  // where the rows have a second place (JointShape::second_rows_at); 0: none
};

// One thread: K and V of every tile's blocks.
template <typename S>
__device__ inline void produce_keys(const JointWork<S>& work, const JointPlaces<S>& places, const CUtensorMap& k,
                                    const CUtensorMap& v) {
  Ring<S::kPlaces> ring;
  Ring<S::kChoices> choices;
  for (Rounds round(work.tiles); round.more(); round.advance()) {
    const JointTile tile = work.tile(round.number());
    if (!work.has_any(tile)) continue;
    const JointChoice<S> choice(work.p, places.base, choices.place());
    mbarrier_wait(places.choice_full(choices.place()), choices.parity());
    const int count = choice.count();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int begin = choice.entry(i).first;
#pragma unroll 1
      for (int part = 0; part < work.parts; ++part, ring.advance()) {
        const int first = begin + part * kKeyTile, place = ring.place();
        mbarrier_wait(places.empty(place), ring.parity() ^ 1);
        mbarrier_arrive_expect_tx(places.full(place), S::kKeyBytes);
        tma_load(places.k(place), &k, first, tile.group, tile.b, places.full(place));
        tma_load(places.v(place), &v, first, tile.group, tile.b, places.full(place));
      }
    }
    mbarrier_arrive(places.choice_empty(choices.place()));
    choices.advance();
  }
}

// A warp: the 64 rows from first_row on. Eight lanes a row, each the same chunk of every 64 columns.
template <typename T, typename Tile, typename S>
__device__ inline void copy_rows_of(std::uint32_t to, const Rows& x, const JointWork<S>& work, const JointTile& tile,
                                    int first_row) {
  const int lane = threadIdx.x & 31, chunk = lane % 8;
  const T* from = static_cast<const T*>(x.data) + tile.b * x.batch + tile.group * work.heads.h * x.head + chunk * 8;
#pragma unroll 2
  for (int row = lane / 8; row < S::kWarpgroupRows; row += 4) {
    const bool valid = first_row + row < work.rows;
    const int r = valid ? first_row + row : 0, t = work.heads.token(r), head = work.heads.head(r, t);
    const T* source = from + t * x.token + head * x.head;
    const std::uint32_t place = Tile::at(to, row, chunk);
#pragma unroll
    for (int slab = 0; slab < Tile::kChunks / 8; ++slab)
      cp_async(place + slab * (S::kWarpgroupRows * 128), source + slab * 64, valid);
  }
}

// S::kLoaders threads: what every tile walks through, then, a warp for each warpgroup, its rows.
template <typename T, bool Backward, typename S>
__device__ inline void produce_rows(const JointWork<S>& work, const JointPlaces<S>& places, const Rows& dout,
                                    int loader) {
  const int warpgroup = loader / 32;
  Ring<S::kChoices> choices;
  JointRowRing rows = places.row_ring();
  for (Rounds round(work.tiles); round.more(); round.advance()) {
    const JointTile tile = work.tile(round.number());
    if (!work.has_any(tile)) continue;
    mbarrier_wait(places.choice_empty(choices.place()), choices.parity() ^ 1);
    JointChoice<S>(work.p, places.base, choices.place()).collect(work, tile, places.base, loader);
    mbarrier_arrive(places.choice_full(choices.place()));
    choices.advance();
    if (!work.has(tile, warpgroup)) continue;
    mbarrier_wait(places.q_empty(warpgroup, rows.place()), rows.parity() ^ 1);
    const int first_row = tile.first_row + warpgroup * S::kWarpgroupRows;
    const std::uint32_t q = places.q(warpgroup, rows.place());
    copy_rows_of<T, typename S::Q>(q, work.p.q, work, tile, first_row);
    if constexpr (Backward) copy_rows_of<T, typename S::O>(places.o_of(q), dout, work, tile, first_row);
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
    mbarrier_arrive(places.q_full(warpgroup, rows.place()));
    rows.advance();
  }
}

// Row g (half 0) or g + 8 of a warp's 16, which a thread has. What the loop over blocks does not need is computed
// before it and anew behind it, so that it takes no registers.
template <typename S>
struct JointRow {
  int t, head;  // head: of all
  std::int64_t statistics;
  bool inside;

  __device__ JointRow(const JointWork<S>& work, const JointTile& tile, int first_row, int half) {
    const int own = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + (threadIdx.x & 31) / 4 + 8 * half;
    const int row = min(first_row + own, work.rows - 1);
    inside = first_row + own < work.rows;
    t = work.heads.token(row);
    head = tile.group * work.heads.h + work.heads.head(row, t);
    statistics = (static_cast<std::int64_t>(tile.b) * work.p.Hq + head) * work.p.S + t;
  }
};

// A consumer warpgroup.
template <typename T, int Dk, int Dv, bool Backward>
class JointConsumer {
 public:
  using S = JointShape<Dk, Dv, Backward>;

  __device__ JointConsumer(const JointWork<S>& all, const JointPlaces<S>& addresses, const Joint& problem, int own)
      : work(all), places(addresses), joint(problem), warpgroup(own), factor(work.p.scale * kLog2E) {}

  __device__ void run() {
    Ring<S::kChoices> choices;
    JointRowRing rows = places.row_ring();
#pragma unroll 1
    for (Rounds round(work.tiles); round.more(); round.advance()) {
      const JointTile tile = work.tile(round.number());
      if (!work.has_any(tile)) continue;
      const bool own_tile = work.has(tile, warpgroup);
      const JointChoice<S> choice(work.p, places.base, choices.place());
      mbarrier_wait(places.choice_full(choices.place()), choices.parity());
      begin(tile);
      q = uniform(places.q(warpgroup, rows.place()));
      o = uniform(places.o_of(q));
      if (own_tile) mbarrier_wait(places.q_full(warpgroup, rows.place()), rows.parity());
      walk(choice);
      __syncwarp();  // every lane has read what it chose
      release(places.choice_empty(choices.place()));
      choices.advance();
      if (!own_tile) continue;
      release(places.q_empty(warpgroup, rows.place()));
      rows.advance();
      write(tile);
    }
  }

 private:
  static constexpr int kTiles = kKeyTile / 8, kSteps = kKeyTile / 16, kOut = S::kOut;
  const JointWork<S>& work;
  const JointPlaces<S>& places;
  const Joint& joint;
  const int warpgroup;
  const float factor;
  int q, o;  // of this tile
  Ring<S::kPlaces> ring;
  int first_t, t[2];  // of the tile, of the thread's rows
  bool sees_keys[2];
  RunningSoftmax softmax;
  float origin[2], inverse[2], own_delta[2];
  float result[kOut / 8][4], s[kTiles][4], dp[kTiles][4];

  __device__ void release(std::uint32_t barrier) const {
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(barrier);
  }
  __device__ int first_row(const JointTile& tile) const { return tile.first_row + warpgroup * S::kWarpgroupRows; }

  __device__ void begin(const JointTile& tile) {
    first_t = work.heads.token(tile.first_row);
    softmax = {};
#pragma unroll
    for (int n = 0; n < kOut / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) result[n][e] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const JointRow<S> row(work, tile, first_row(tile), half);
      t[half] = row.t;
      sees_keys[half] = false;
      if constexpr (Backward) {
        const float2 stats = reinterpret_cast<const float2*>(work.p.stats)[row.statistics];
        origin[half] = stats.y == 0.f ? 0.f : stats.x;
        inverse[half] = normaliser(stats.y);
        own_delta[half] = joint.delta[row.statistics];
      }
    }
  }

  __device__ void walk(const JointChoice<S>& choice) {
    const int count = uniform(choice.count());
    const auto chose = [&](int i) { return i < count ? choice.entry(i).warpgroups : 0; };
    unsigned next = chose(0);  // asked for an entry ahead
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const bool own = uniform(static_cast<int>(next)) >> warpgroup & 1;
      next = chose(i + 1);
#pragma unroll 1
      for (int part = 0; part < work.parts; ++part, ring.advance()) {
        mbarrier_wait(places.full(ring.place()), ring.parity());
        if (own)
          compute(choice.entry(i), part);
        else
          __syncwarp();  // no lane still waits for what the ring then overwrites
        release(places.empty(ring.place()));
      }
    }
  }
  __device__ void compute(const typename JointChoice<S>::Entry& entry, int part) {
    const int k = uniform(places.k(ring.place())), v = uniform(places.v(ring.place()));
    if constexpr (Backward) pin(dp);
    pin(s);
    wgmma_fence();
    product_of_columns<T, Dk / 16>(s, typename S::Q(), q, typename S::K(), k);
    if constexpr (Backward) product_of_columns<T, Dv / 16>(dp, typename S::O(), o, typename S::V(), v);
    wgmma_commit();
    const int first = entry.first + part * kKeyTile;
    int end[2];  // each row sees the keys below its own end
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      end[half] = entry.has(t[half] - first_t) ? min(t[half] + 1, entry.last) : 0;
      sees_keys[half] |= end[half] > first;
    }
    wgmma_wait<0>();
    pin(s);
    if constexpr (Backward) pin(dp);
    std::uint32_t left[kSteps][4];  // P or dS
    weigh(left, first, end);
    pin(result);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      Wgmma<T, kOut>::values(result, left[step], Backward ? S::K::rows(k, step) : S::V::rows(v, step));
    wgmma_commit();
    wgmma_wait<0>();
    pin(result);
  }
  // From S (and dP) to P or dS.
  __device__ void weigh(std::uint32_t (&left)[kSteps][4], int first, const int (&end)[2]) {
    // A warp whose rows chose nothing of it has no weights. (Of 16 heads a warp's rows are one token.) A branch in the
    // backward pass would cost the registers that keep its products asynchronous.
    if (!Backward && !__any_sync(0xffffffffu, max(end[0], end[1]) > first)) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int e = 0; e < 4; ++e) left[step][e] = 0;
      return;
    }
    if constexpr (Backward) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[n][e] = exp2_fast(fmaf(s[n][e], factor, -origin[e / 2])) * inverse[e / 2] * (dp[n][e] - own_delta[e / 2]);
    }
    if (min(end[0], end[1]) < first + kKeyTile) {
      const int column = first + (threadIdx.x & 3) * 2;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (column + n * 8 + e % 2 >= end[e / 2]) s[n][e] = Backward ? 0.f : -INFINITY;
    }
    if constexpr (!Backward) {
      float rescale[2];
      softmax.template update_in_chains<T>(s, factor, rescale);
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) result[n][e] *= rescale[e / 2];
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) as_a<T>(left[step], s, step);
  }

  __device__ void write(const JointTile& tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const JointRow<S> row(work, tile, static_cast<int>(anew(first_row(tile))), half);
      float scale = work.p.scale, total = 1;
      if constexpr (!Backward) {
        total = total_of(softmax.template quad_total<T>(half, factor), sees_keys[half]);
        scale = normaliser(total);
        if (row.inside && threadIdx.x % 4 == 0)
          reinterpret_cast<float2*>(work.p.stats)[row.statistics] =
              stored_statistics(softmax.maximum[half], total, factor);
      }
      const Rows& out = joint.out;
      T* const to = static_cast<T*>(out.data) + tile.b * out.batch + row.t * out.token + row.head * out.head;
      store_row(row.inside ? to : nullptr, result, half, scale, total == 0.f, Backward && joint.adds);
    }
  }
};

template <typename T, int Dk, int Dv, bool Backward>
__global__ void __launch_bounds__(JointShape<Dk, Dv, Backward>::kThreads, 1)
    joint_kernel(const __grid_constant__ Joint joint, const __grid_constant__ CUtensorMap k,
                 const __grid_constant__ CUtensorMap v) {
#if NSA_ON_HOPPER
  using S = JointShape<Dk, Dv, Backward>;
  extern __shared__ char shared[];
  const std::uint32_t before = shared_address(shared);
  const JointPlaces<S> places{shared + ((before + S::kAlignment - 1) / S::kAlignment * S::kAlignment - before),
                              joint.second_rows};
  const JointWork<S> work(joint.forward, joint.ways);
  if (threadIdx.x == 0) places.start_barriers();
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec<S::kProducerRegisters>();
    if (threadIdx.x == 0)
      produce_keys<S>(work, places, k, v);
    else if (threadIdx.x >= 32 && threadIdx.x < 32 + S::kLoaders)
      produce_rows<T, Backward>(work, places, joint.dout, static_cast<int>(threadIdx.x) - 32);
  } else {
    setmaxnreg_inc<S::kConsumerRegisters>();
    JointConsumer<T, Dk, Dv, Backward>(work, places, joint, uniform(threadIdx.x / 128 - 1)).run();
  }
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
