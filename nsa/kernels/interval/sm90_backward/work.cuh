// How the backward pass over intervals (backward.cuh) cuts its work, its workspace and its shared memory.
//
// Note [Turns]
// dK and dV of a tile of keys stay in registers while its rows pass by; dQ of a tile of rows is a sum over tiles of
// keys, which other SMs have, and so a fp32 sum in memory. They add one after the other, the last tile of
// keys first: a row's diagonal is where its tile of keys begins, so that all begin at once and none waits for another
// that walks the same rows behind it. A number per tile of rows says whose turn it is. The last one does not write the
// sum back: it rounds it into dQ (Note [Last turns]). So every sum has a fixed order, and a sum exists only between its
// first and its last turn: `ring` of them are enough, tile r (counted from the end) has place r % ring, and the number
// counts the rounds of the ring too. A long row of queries is cut into chunks of tiles, the last ones first. What each
// adds to dK and dV of a tile of keys is summed in fp32, in the chunks' order too: in turn, or, where each may leave
// its own in memory (`key_slots`), by sum_chunks_kernel. Chunks that begin together end together, and would wait for
// each other.
//
// Note [Last turns]
// Who has the last turn must not be slower than the others: tiles of keys walk through the same rows side by side, and
// everybody behind it waits. So all memory is TMA's. The others' sum comes into the place where this tile's dQ would
// be staged, as soon as that is free and the turn has come: most of a step before it is wanted. What is rounded goes
// out from there as a box, which, where dQ is added to another branch's, TMA adds.
//
// Note [Tickets]
// CTAs draw tickets. What a ticket waits for belongs to earlier ones, which somebody has drawn and is at
// work on; so somebody can always go on, however few CTAs run. That is why a ring must be longer than what
// one item walks through.
//
// Note [Rows together]
// Every tile of rows goes to many tiles of keys, and comes from memory each time, as its sum does, unless the CTAs that
// want it do so at about the same time. In a chunk of the compressed branch they do: its items walk through the same
// rows. A window's begin with different ones. So an item begins in the middle, with the tile of rows whose number is a
// multiple of `period` (no item has more tiles), and goes round.
#pragma once

#include "nsa/kernels/device/heads.cuh"
#include "nsa/kernels/device/interval.cuh"
#include "nsa/kernels/device/ring.cuh"
#include "nsa/kernels/device/slab.cuh"

namespace nsa::kernels::hopper {

// What a tile's rows are, as describe_rows_kernel writes it. A row that does not exist has weights and gradients of 0
// and sees no key.
struct IntervalRows {
  static constexpr int kRows = 64;
  float2 softmax[kRows];  // origin, normaliser
  float delta[kRows];
  int end[kRows];  // one past the last key that it sees; see IntervalBackwardPlan::seen
};

template <int D_>
struct IntervalBackwardShape {
  static constexpr int D = D_, kRows = IntervalRows::kRows, kKeys = 128, kConsumers = 256, kThreads = 128 + kConsumers;
  // Width 64 has one tile of keys (Limits::few_keys_steps): nothing is added to dQ, and there are no turns.
  static constexpr bool kOneTile = D == 64;
  static constexpr int kQStages = 3, kOStages = 2, kDsStages = 2, kItems = 2;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;  // the launch gives everyone 168
  using K = Slab<kKeys, D>;                                                // V too
  using Q = Slab<kRows, D>;                                                // dO too
  using Ds = Slab<kKeys, kRows>;
  static constexpr int kSums = kRows * D, kKeySums = kKeys * 2 * D;               // floats of a tile's dQ; of dK and dV
  static constexpr int kHalfBytes = kSums * static_cast<int>(sizeof(float)) / 2;  // of dQ, each warpgroup's
  static constexpr int kV = K::kBytes, kQ = kV + K::kBytes, kO = kQ + kQStages * Q::kBytes,
                       kDs = kO + kOStages * Q::kBytes, kStaging = kDs + kDsStages * Ds::kBytes,
                       kDescriptions = kStaging + 2 * kHalfBytes,
                       kBarriers = kDescriptions + kQStages * static_cast<int>(sizeof(IntervalRows));
  static constexpr int kBarrierCount = 2 * (kQStages + kOStages + kItems) + 3 * kDsStages + 7;
  static_assert(D == 64 || D == 128, "registers and shared memory are cut for these");
  static constexpr int kAlignment = 1024, kSharedBytes = kBarriers + kBarrierCount * 8 + kAlignment;
};

// The addresses in shared memory.
template <typename S>
struct IntervalBackwardPlaces {
  std::uint32_t base;
  __device__ std::uint32_t k() const { return base; }
  __device__ std::uint32_t v() const { return base + S::kV; }
  __device__ std::uint32_t q(int place) const { return base + S::kQ + place * S::Q::kBytes; }
  __device__ std::uint32_t o(int place) const { return base + S::kO + place * S::Q::kBytes; }
  __device__ std::uint32_t ds(int place) const { return base + S::kDs + place * S::Ds::kBytes; }
  __device__ std::uint32_t description(int place) const {
    return base + S::kDescriptions + place * static_cast<int>(sizeof(IntervalRows));
  }
  __device__ std::uint32_t staging(int half) const { return base + S::kStaging + half * S::kHalfBytes; }
  __device__ std::uint32_t barrier(int i) const { return base + S::kBarriers + i * 8; }
  __device__ std::uint32_t q_full(int place) const { return barrier(place); }
  __device__ std::uint32_t q_empty(int place) const { return barrier(S::kQStages + place); }
  __device__ std::uint32_t o_full(int place) const { return barrier(2 * S::kQStages + place); }
  __device__ std::uint32_t o_empty(int place) const { return barrier(2 * S::kQStages + S::kOStages + place); }
  // A warpgroup's half of dS^T.
  __device__ std::uint32_t ds_full(int place, int half) const { return rest(2 * S::kItems + 7 + place * 2 + half); }
  __device__ std::uint32_t ds_empty(int place) const { return rest(2 * S::kItems + 7 + 2 * S::kDsStages + place); }
  __device__ std::uint32_t item_full(int place) const { return rest(place); }
  __device__ std::uint32_t item_empty(int place) const { return rest(S::kItems + place); }
  __device__ std::uint32_t keys_full() const { return rest(2 * S::kItems); }
  __device__ std::uint32_t keys_empty() const { return rest(2 * S::kItems + 1); }
  // Of a tile of rows: the sum's turn has come, and with the last one the others' sum into `staging`; a warpgroup's
  // half of its dQ lies there, as the registers have it or, the last time, rounded, slab by slab; it was taken.
  __device__ std::uint32_t turn_come() const { return rest(2 * S::kItems + 2); }
  __device__ std::uint32_t staged(int half) const { return rest(2 * S::kItems + 3 + half); }
  __device__ std::uint32_t taken(int half) const { return rest(2 * S::kItems + 5 + half); }

  __device__ void start_barriers() const {
    constexpr int kWarps = S::kConsumers / 32;
    for (int i = 0; i < S::kQStages; ++i) {
      mbarrier_init(q_full(i), 2);
      mbarrier_init(q_empty(i), S::kConsumers);
    }
    for (int i = 0; i < S::kOStages; ++i) {
      mbarrier_init(o_full(i), 1);
      mbarrier_init(o_empty(i), kWarps);
    }
    for (int i = 0; i < S::kDsStages; ++i) {
      for (int half = 0; half < 2; ++half) mbarrier_init(ds_full(i, half), kWarps / 2);
      mbarrier_init(ds_empty(i), kWarps);
    }
    for (int i = 0; i < S::kItems; ++i) {
      mbarrier_init(item_full(i), 1);
      mbarrier_init(item_empty(i), S::kConsumers + 96);
    }
    mbarrier_init(keys_full(), 1);
    mbarrier_init(keys_empty(), kWarps);
    for (int half = 0; half < 2; ++half) {
      mbarrier_init(staged(half), S::kConsumers / 2);
      mbarrier_init(taken(half), 1);
    }
    mbarrier_init(turn_come(), 1);
    fence_mbarrier_init();
  }

 private:
  __device__ std::uint32_t rest(int i) const { return barrier(2 * (S::kQStages + S::kOStages) + i); }
};

// Of all pairs (batch entry, group). A tile of rows is of whole tokens, so that TMA can load it.
struct IntervalBackwardPlan {
  int pairs, tokens;  // of a tile of rows
  int row_tiles, key_tiles;
  int chunk, chunks, ring, period;  // tiles of rows
  // dQ [pairs, ring, S::kSums], in the order of the consumers' registers; null where all keys are one tile.
  float* sums = nullptr;
  float* key_sums = nullptr;     // [pairs, key_tiles, key_slots, S::kKeySums], too; where there are several chunks
  int key_slots = 1;             // 1, or one for every chunk
  IntervalRows* rows = nullptr;  // [pairs, row_tiles]
  // Zero before the kernel starts. Whose turn it is: [pairs, ring] rounds of the ring * kRound + position,
  // [pairs, key_tiles] pieces that are done.
  int *row_turns = nullptr, *key_turns = nullptr, *ticket = nullptr;

  static constexpr int kRound = 1 << 16;

  // Of the keys before `end` a row sees so many, the last ones: all, or a window.
  int seen = 0;
};

// The tiles of rows [first, last) of a chunk, which a tile of keys walks through from `start` on and round.
struct IntervalItem {
  int pair;  // -1: there is no more
  int keys, first, last, start;
  int piece, pieces;  // of the chunks that this tile of keys meets

  __device__ int count() const { return last - first; }
  __device__ int tile(int i) const { return start + i < last ? start + i : start + i - count(); }
};

// See Note [Turns]: of a tile of rows and one of keys.
struct IntervalTurn {
  int place;     // of the sum, and of its number
  int expected;  // the number
  bool first, last;
};

template <typename S>
struct IntervalBackwardWork {
  const AttentionForward& f;
  const IntervalBackwardPlan& plan;
  Heads heads;
  Interval interval;

  __device__ IntervalBackwardWork(const AttentionForward& problem, const IntervalBackwardPlan& cut)
      : f(problem), plan(cut), heads(f.Hq / f.G), interval(f) {}

  struct Range {
    int first, last;
  };
  // The tiles of keys that tiles of rows see; one at least, so that every dQ is written.
  __device__ Range keys_of(int first_tile, int last_tile) const {
    const int last_token = min(last_tile * plan.tokens, f.S) - 1;
    const int first = interval.begin(first_tile * plan.tokens) / S::kKeys;
    return {first, max((interval.end(last_token) + S::kKeys - 1) / S::kKeys, first + 1)};
  }
  // The tiles of rows that see a tile of keys, by the same rule.
  __device__ Range rows_of(int keys) const {
    const int first = keys == 0 ? 0 : interval.first_query(keys * S::kKeys);
    const int last = interval.last_query((keys + 1) * S::kKeys);
    return {first / plan.tokens, (last + plan.tokens - 1) / plan.tokens};
  }
  __device__ IntervalTurn turn(const IntervalItem& item, int tile) const {
    const Range keys = keys_of(tile, tile + 1);
    const int from_end = plan.row_tiles - 1 - tile, round = from_end / plan.ring;
    const int position = keys.last - 1 - item.keys;
    return {item.pair * plan.ring + from_end - round * plan.ring, round * plan.kRound + position, position == 0,
            item.keys == keys.first};
  }
  __device__ float* sum(const IntervalTurn& turn) const {
    return plan.sums + static_cast<std::int64_t>(turn.place) * S::kSums;
  }
  // The chunks that a tile of keys meets, whose rows are `all`: the first one's number, and how many.
  struct Chunks {
    int first, count;
  };
  __device__ Chunks chunks_of(const Range& all) const {
    const int first = (plan.row_tiles - all.last) / plan.chunk;
    return {first, (plan.row_tiles - 1 - all.first) / plan.chunk - first + 1};
  }
  // What one of them adds to dK and dV, or the sum of all so far.
  __device__ float4* key_sums(int pair, int keys, int piece) const {
    const std::int64_t tile = static_cast<std::int64_t>(pair) * plan.key_tiles + keys;
    return reinterpret_cast<float4*>(plan.key_sums +
                                     (tile * plan.key_slots + (plan.key_slots > 1 ? piece : 0)) * S::kKeySums);
  }
  // See Note [Tickets].
  __device__ IntervalItem draw() const {
    const int a_chunk = plan.key_tiles * plan.pairs, tickets = plan.chunks * a_chunk;
    for (;;) {
      const int ticket = atomicAdd(plan.ticket, 1);
      IntervalItem item;
      item.pair = -1;
      if (ticket >= tickets) return item;
      const int chunk = ticket / a_chunk, rest = ticket - chunk * a_chunk, from_last = rest / plan.pairs;
      const int end = plan.row_tiles - chunk * plan.chunk, begin = max(end - plan.chunk, 0);
      const Range seen = keys_of(begin, end);
      item.keys = seen.last - 1 - from_last;
      if (item.keys < seen.first) continue;
      const Range all = rows_of(item.keys);
      item.first = max(all.first, begin);
      item.last = min(all.last, end);
      item.start = (item.first + plan.period - 1) / plan.period * plan.period;
      if (item.start >= item.last) item.start = item.first;
      const Chunks chunks = chunks_of(all);
      item.piece = chunk - chunks.first;
      item.pieces = chunks.count;
      item.pair = rest - from_last * plan.pairs;
      return item;
    }
  }
};

}  // namespace nsa::kernels::hopper
