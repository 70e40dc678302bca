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
//
// Note [A step ahead]
// Of a step of 64 keys the products and exponentials are two thirds; the rest was what tells a warp what to do: places,
// descriptions of operands, who chose what. None of it is much, but each instruction waits for the one before, and
// three warps a scheduler do not hide that. So the ring keeps its place (KeptRing), operands are an addition from those
// of place 0, and what a thread's rows see of the next tile of keys is found out under this one's scores.
template <typename T, int Dk, int Dv, bool Backward>
class JointConsumer {
 public:
  using S = JointShape<Dk, Dv, Backward>;

  __device__ JointConsumer(const JointWork<S>& all, const JointPlaces<S>& addresses, const Joint& problem, int own)
      : work(all),
        places(addresses),
        joint(problem),
        warpgroup(own),
        leads(anew(threadIdx.x & 31) == 0),
        factor(work.p.scale * kLog2E),
        first_full(uniform(anew(places.full(0)))),
        first_k(uniform(anew(places.k(0)))) {}

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
      if (Backward && asked.number != round.number()) ask(tile, round.number());
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
      Rounds after = round;
      after.advance();
      if (Backward && after.more()) ask(work.tile(after.number()), after.number());
      write(tile);
    }
  }

 private:
  static constexpr int kTiles = kKeyTile / 8, kSteps = kKeyTile / 16, kOut = S::kOut;
  const JointWork<S>& work;
  const JointPlaces<S>& places;
  const Joint& joint;
  const int warpgroup;
  const bool leads;
  const float factor;
  const int first_full, first_k;  // of place 0
  int q, o;                       // of this tile
  KeptRing<S::kPlaces> ring;
  int first_t, t[2];  // of the tile, of the thread's rows
  unsigned seen = 0;  // bit i: the thread's row i sees any key
  RunningSoftmax softmax;
  // Of the rows of the tile with a number, asked for while the tile before is written.
  struct {
    int number = -1;
    float2 statistics[2];
    float delta[2];
  } asked;
  float origin[2], inverse[2], own_delta[2];
  float result[kOut / 8][4], s[kTiles][4], dp[kTiles][4];

  __device__ void release(std::uint32_t barrier) const {
    if (leads) mbarrier_arrive(barrier);
  }
  __device__ int first_row(const JointTile& tile) const { return tile.first_row + warpgroup * S::kWarpgroupRows; }

  __device__ void ask(const JointTile& tile, int number) {
    asked.number = number;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const JointRow<S> row(work, tile, first_row(tile), half);
      asked.statistics[half] = reinterpret_cast<const float2*>(work.p.stats)[row.statistics];
      asked.delta[half] = joint.delta[row.statistics];
    }
  }
  __device__ void begin(const JointTile& tile) {
    first_t = work.heads.token(tile.first_row);
    seen = 0;
    softmax = {};
#pragma unroll
    for (int n = 0; n < kOut / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) result[n][e] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const JointRow<S> row(work, tile, first_row(tile), half);
      t[half] = row.t;
      if constexpr (Backward) {
        const float2 stats = asked.statistics[half];
        origin[half] = stats.y == 0.f ? 0.f : stats.x;
        if constexpr (!kNormalisesLate<T>) inverse[half] = normaliser(stats.y);
        own_delta[half] = asked.delta[half];
      }
    }
  }

  // See Note [A step ahead].
  __device__ void walk(const JointChoice<S>& choice) {
    const int count = uniform(choice.count());
    if (count == 0) return;
    int entries = count, part = 0;  // that are left, and of this one
    auto words = choice.words_of(t[0] - first_t, t[1] - first_t);
    words.read();
#pragma unroll 1
    do {
      const auto next = [&, now = part] {
        const auto before = words;
        if (++part == work.parts) {
          part = 0;
          if (--entries > 0) words.advance();
        }
        words.read();
        return before.keys(now);
      };
      mbarrier_wait(first_full + ring.place() * 8, ring.parity());
      if (uniform(static_cast<int>(words.warpgroups)) >> warpgroup & 1) {
        compute(next);
      } else {
        __syncwarp();  // no lane still waits for what the ring then overwrites
        next();
      }
      release(first_full + (S::kPlaces + ring.place()) * 8);
      ring.advance();
    } while (entries > 0);
  }
  template <typename Next>
  __device__ void compute(const Next& next) {
    const int place = ring.place() * S::kKeyBytes;
    if constexpr (Backward) pin(dp);
    pin(s);
    wgmma_fence();
    product_of_operands<T, Dk / 16>(s, typename S::Q(), S::Q::columns(q, 0), typename S::K(),
                                    moved(S::K::columns(first_k, 0), place));
    if constexpr (Backward)
      product_of_operands<T, Dv / 16>(dp, typename S::O(), S::O::columns(o, 0), typename S::V(),
                                      moved(S::V::columns(first_k + S::K::kBytes, 0), place));
    wgmma_commit();
    const auto keys = next();
    int end[2];  // each row sees the keys below its own end
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      end[half] = keys.chosen[half] ? min(t[half] + 1, keys.last) : 0;
      if (end[half] > keys.first) seen |= 1u << half;
    }
    wgmma_wait<0>();
    pin(s);
    if constexpr (Backward) pin(dp);
    std::uint32_t left[kSteps][4];  // P or dS
    weigh(left, keys.first, end);
    pin(result);
    wgmma_fence();
    const std::uint64_t right = moved(Backward ? S::K::rows(first_k, 0) : S::V::rows(first_k + S::K::kBytes, 0), place);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      Wgmma<T, kOut>::values(result, left[step],
                             Backward ? S::K::rows_from(right, step) : S::V::rows_from(right, step));
    wgmma_commit();
    wgmma_wait<0>();
    pin(result);
  }
  // From S (and dP) to P or dS. Most tiles of keys a row sees wholly or not at all: what it does not see is left out of
  // the rounded weights, two at a time, and only a row's last keys are masked one by one.
  __device__ void weigh(std::uint32_t (&left)[kSteps][4], int first, const int (&end)[2]) {
    const bool sees[2] = {end[0] > first, end[1] > first};
    if constexpr (Backward) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[n][e] = exp2_fast(fmaf(s[n][e], factor, -origin[e / 2]));
          if constexpr (!kNormalisesLate<T>) s[n][e] *= inverse[e / 2];
          s[n][e] *= dp[n][e] - own_delta[e / 2];
        }
      mask_last(first, end, sees);
    } else if (__any_sync(0xffffffffu, sees[0] || sees[1])) {
      // Else no row of the warp chose any. (Of 16 heads a warp's rows are one token.) Such a branch in the backward
      // pass would cost the registers that keep its products asynchronous.
      mask_last(first, end, sees);
      float rescale[2];
      softmax.template update_in_chains<T>(s, factor, rescale, sees);
      rescale_rows(result, rescale);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      as_a<T>(left[step], s, step);
#pragma unroll
      for (int e = 0; e < 4; ++e) left[step][e] = sees[e % 2] ? left[step][e] : 0;
    }
  }
  __device__ void mask_last(int first, const int (&end)[2], const bool (&sees)[2]) {
    if (!(sees[0] && end[0] < first + kKeyTile) && !(sees[1] && end[1] < first + kKeyTile)) return;
    const int column = first + (threadIdx.x & 3) * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (column + n * 8 + e % 2 >= end[e / 2]) s[n][e] = Backward ? 0.f : -INFINITY;
  }

  __device__ T* place_of(const JointTile& tile, const JointRow<S>& row) const {
    const Rows& out = joint.out;
    if (!row.inside) return nullptr;
    return static_cast<T*>(out.data) + tile.b * out.batch + row.t * out.token + row.head * out.head;
  }
  __device__ void write(const JointTile& tile) {
    // Asked for before the first store, over which nvcc cannot move a load.
    RowBefore<kOut> before[2];
    float totals[2];
    if constexpr (Backward) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const JointRow<S> row(work, tile, first_row(tile), half);
        if constexpr (kNormalisesLate<T>)
          totals[half] = reinterpret_cast<const float2*>(work.p.stats)[row.statistics].y;
        before[half] = RowBefore<kOut>(joint.adds ? place_of(tile, row) : nullptr);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const JointRow<S> row(work, tile, static_cast<int>(anew(first_row(tile))), half);
      float scale = work.p.scale, total = 1;
      if constexpr (!Backward) {
        total = total_of(softmax.template quad_total<T>(half, factor), seen >> half & 1);
        scale = normaliser(total);
        if (row.inside && threadIdx.x % 4 == 0)
          reinterpret_cast<float2*>(work.p.stats)[row.statistics] =
              stored_statistics(softmax.maximum[half], total, factor);
      } else if constexpr (kNormalisesLate<T>) {
        scale *= normaliser(totals[half]);
      }
      store_row(place_of(tile, row), result, half, scale, total == 0.f, Backward && joint.adds, before[half]);
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
