// The producer warps of the backward pass over intervals (backward.cuh).
#pragma once

#include <cuda.h>

#include "nsa/kernels/interval/sm90_backward/work.cuh"

namespace nsa::kernels::hopper {

// What every thread of the block shares besides the tiles. The barriers that set a place of it, or of the rows'
// descriptions, free count threads and not warps as the others do, and so does the one behind `staging`, where threads
// write what others have read: racecheck does not see that one lane arrives for all.
template <typename S>
struct IntervalBackwardShared {
  IntervalItem items[S::kItems];
  // Of the tiles of rows in the places of Q.
  IntervalTurn turn[S::kQStages];
  bool masked[S::kQStages][2];  // whether not every row sees every key of a warpgroup
};

// A warp's items one after the other.
template <typename S>
class IntervalItems {
 public:
  __device__ IntervalItems(const IntervalBackwardPlaces<S>& places, const IntervalBackwardShared<S>& shared)
      : places_(places), shared_(shared) {}
  __device__ IntervalItem next() {
    mbarrier_wait(places_.item_full(ring_.place()), ring_.parity());
    const IntervalItem item = shared_.items[ring_.place()];
    mbarrier_arrive(places_.item_empty(ring_.place()));
    ring_.advance();
    return item;
  }

 private:
  const IntervalBackwardPlaces<S>& places_;
  const IntervalBackwardShared<S>& shared_;
  Ring<S::kItems> ring_;
};

// One thread. An item is drawn when its turn has come, not before: others wait for what nobody is at work on.
template <typename S>
__device__ inline void produce_items(const IntervalBackwardWork<S>& work, const IntervalBackwardPlaces<S>& places,
                                     IntervalBackwardShared<S>& shared, const CUtensorMap& k, const CUtensorMap& v) {
  Ring<S::kItems> ring;
  Ring<1> keys, tiles;
  for (;; ring.advance(), keys.advance()) {
    mbarrier_wait(places.keys_empty(), keys.parity() ^ 1);
    const IntervalItem item = work.draw();
    mbarrier_wait(places.item_empty(ring.place()), ring.parity() ^ 1);
    shared.items[ring.place()] = item;
    mbarrier_arrive(places.item_full(ring.place()));
    if (item.pair < 0) return;
    const int b = item.pair / work.f.G, group = item.pair - b * work.f.G;
    mbarrier_arrive_expect_tx(places.keys_full(), 2 * S::K::kBytes);
    tma_load(places.k(), &k, item.keys * S::kKeys, group, b, places.keys_full());
    tma_load(places.v(), &v, item.keys * S::kKeys, group, b, places.keys_full());
    if constexpr (!S::kOneTile)
#pragma unroll 1
      for (int i = 0; i < item.count(); ++i, tiles.advance()) {
        const IntervalTurn turn = work.turn(item, item.tile(i));
        wait_for_turn(work.plan.row_turns + turn.place, turn.expected);
        mbarrier_wait(places.taken(1), tiles.parity() ^ 1);
        if (turn.last && !turn.first) {
          mbarrier_arrive_expect_tx(places.turn_come(), 2 * S::kHalfBytes);
          bulk_load(places.staging(0), work.sum(turn), 2 * S::kHalfBytes, places.turn_come());
        } else {
          mbarrier_arrive(places.turn_come());
        }
      }
  }
}

// One thread of a warp: every tile's dQ from shared memory to its sum, or, the last one, to its place.
template <typename S, bool Adds>
__device__ inline void hand_over_sums(const IntervalBackwardWork<S>& work, const IntervalBackwardPlaces<S>& places,
                                      const IntervalBackwardShared<S>& shared, const CUtensorMap& dq) {
  constexpr int kRound = IntervalBackwardPlan::kRound;
  Ring<1> ring;
  IntervalItems<S> items(places, shared);
  for (IntervalItem item = items.next(); item.pair >= 0; item = items.next()) {
    const int b = item.pair / work.f.G, head = (item.pair - b * work.f.G) * work.heads.h;
#pragma unroll 1
    for (int i = 0; i < item.count() && threadIdx.x % 32 == 0; ++i, ring.advance()) {
      const int tile = item.tile(i);
      IntervalTurn turn{0, 0, true, true};
      if constexpr (!S::kOneTile) {
        turn = work.turn(item, tile);
        mbarrier_wait(places.turn_come(), ring.parity());
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mbarrier_wait(places.staged(half), ring.parity());
        if (turn.last) continue;
        float* const to = work.sum(turn) + half * S::kSums / 2;
        if (turn.first)
          bulk_store(to, places.staging(half), S::kHalfBytes);
        else
          bulk_reduce_add(to, places.staging(half), S::kHalfBytes);
      }
#pragma unroll
      for (int slab = 0; slab < S::D / 64 && turn.last; ++slab)
        if constexpr (Adds)
          tma_add_rows(&dq, places.staging(slab), head, tile * work.plan.tokens, slab, b);
        else
          tma_store_rows(&dq, places.staging(slab), head, tile * work.plan.tokens, slab, b);
      bulk_wait_read();
#pragma unroll
      for (int half = 0; half < 2; ++half) mbarrier_arrive(places.taken(half));
      bulk_wait();
      if constexpr (!S::kOneTile)
        pass_turn(work.plan.row_turns + turn.place,
                  turn.last ? turn.expected / kRound * kRound + kRound : turn.expected + 1);
    }
    __syncwarp();
  }
}

// One thread of a warp: the rows of Q and dO.
template <typename S>
__device__ inline void produce_rows(const IntervalBackwardWork<S>& work, const IntervalBackwardPlaces<S>& places,
                                    const IntervalBackwardShared<S>& shared, const CUtensorMap& q,
                                    const CUtensorMap& dout) {
  constexpr int kDescription = sizeof(IntervalRows);
  const int h = work.heads.h, bytes = work.plan.tokens * h * S::D * 2;
  Ring<S::kQStages> q_ring;
  Ring<S::kOStages> o_ring;
  IntervalItems<S> items(places, shared);
  for (IntervalItem item = items.next(); item.pair >= 0; item = items.next()) {
    const int b = item.pair / work.f.G, head = (item.pair - b * work.f.G) * h;
    const auto load = [&](const CUtensorMap& map, std::uint32_t to, int tile, std::uint32_t full) {
#pragma unroll
      for (int slab = 0; slab < S::D / 64; ++slab)
        tma_load_rows(to + slab * (S::kRows * 128), &map, head, tile * work.plan.tokens, slab, b, full);
    };
#pragma unroll 1
    for (int i = 0; i < item.count() && threadIdx.x % 32 == 0; ++i, q_ring.advance(), o_ring.advance()) {
      const int tile = item.tile(i), place = q_ring.place();
      mbarrier_wait(places.q_empty(place), q_ring.parity() ^ 1);
      mbarrier_arrive_expect_tx(places.q_full(place), bytes + kDescription);
      load(q, places.q(place), tile, places.q_full(place));
      bulk_load(places.description(place),
                work.plan.rows + static_cast<std::int64_t>(item.pair) * work.plan.row_tiles + tile, kDescription,
                places.q_full(place));
      mbarrier_wait(places.o_empty(o_ring.place()), o_ring.parity() ^ 1);
      mbarrier_arrive_expect_tx(places.o_full(o_ring.place()), bytes);
      load(dout, places.o(o_ring.place()), tile, places.o_full(o_ring.place()));
    }
    __syncwarp();
  }
}

// One thread of a warp: what is to be done with the tile in Q's place.
template <typename S>
__device__ inline void describe_tiles(const IntervalBackwardWork<S>& work, const IntervalBackwardPlaces<S>& places,
                                      IntervalBackwardShared<S>& shared) {
  Ring<S::kQStages> ring;
  IntervalItems<S> items(places, shared);
  for (IntervalItem item = items.next(); item.pair >= 0; item = items.next()) {
    const int first_key = item.keys * S::kKeys;
#pragma unroll 1
    for (int i = 0; i < item.count() && threadIdx.x % 32 == 0; ++i, ring.advance()) {
      const int tile = item.tile(i), place = ring.place();
      // Both ends of the rows' intervals rise along the tile.
      const int from = work.interval.begin(min((tile + 1) * work.plan.tokens, work.f.S) - 1);
      const int to = work.interval.end(tile * work.plan.tokens);
      mbarrier_wait(places.q_empty(place), ring.parity() ^ 1);
      if constexpr (!S::kOneTile) shared.turn[place] = work.turn(item, tile);
      shared.masked[place][0] = first_key < from || first_key + 64 > to;
      shared.masked[place][1] = first_key + 64 < from || first_key + 128 > to;
      mbarrier_arrive(places.q_full(place));
    }
    __syncwarp();
  }
}

}  // namespace nsa::kernels::hopper
