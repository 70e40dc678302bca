// How the kernel that computes neighbours jointly cuts its work and its shared memory, and what a tile of
// rows walks through.
#pragma once

#include <algorithm>

#include "nsa/kernels/device/heads.cuh"
#include "nsa/kernels/device/pieces.cuh"
#include "nsa/kernels/device/ring.cuh"
#include "nsa/kernels/device/rounds.cuh"
#include "nsa/kernels/device/slab.cuh"
#include "nsa/kernels/selected/ways.hpp"

namespace nsa::kernels::hopper {

// kWide: the backward pass of 192/128, whose accumulators leave room for two warpgroups only.
template <int Dk_, int Dv_, bool Backward>
struct JointShape {
  static constexpr int Dk = Dk_, Dv = Dv_, kOut = Backward ? Dk : Dv;
  static constexpr bool kWide = Backward && Dk > 128;
  static constexpr int kWarpgroups = kWide ? 2 : 3, kWarpgroupRows = 64, kRows = kWarpgroupRows * kWarpgroups;
  static constexpr int kThreads = 128 * (kWarpgroups + 1), kConsumerWarps = 4 * kWarpgroups;
  static constexpr int kLoaders = 32 * kWarpgroups;  // a warp for each consumer warpgroup
  static constexpr int kMostChosen = 64;             // by a token: JointChoice has a loader for each
  static_assert(kMostChosen <= kLoaders);
  // What the launch gives everyone, shared out; dQ of 128 needs all it can have.
  static constexpr int kProducerRegisters = kWide ? 40 : Backward && Dk > 64 ? 32 : 56;
  static constexpr int kConsumerRegisters = kWide ? 232 : Backward && Dk > 64 ? 160 : 152;
  using Q = Slab<kWarpgroupRows, Dk>;
  using O = Slab<kWarpgroupRows, Dv>;  // dO
  using K = Slab<kKeyTile, Dk>;
  using V = Slab<kKeyTile, Dv>;

  // Shared memory: Q and dO of every warpgroup, the ring of K and V, barriers, and what JointChoice needs. Then, where
  // the launch has room, Q and dO once more: they so come a tile ahead.
  static constexpr int kRowBytes = Q::kBytes + (Backward ? O::kBytes : 0), kKeyBytes = K::kBytes + V::kBytes;
  static constexpr int kPlaces = std::min(6, (200 * 1024 - kWarpgroups * kRowBytes) / kKeyBytes), kChoices = 2;
  static constexpr int kKeysAt = kWarpgroups * kRowBytes, kBarriersAt = kKeysAt + kPlaces * kKeyBytes;
  static constexpr int kChoicesAt = kBarriersAt + 8 * (4 * kWarpgroups + 2 * kChoices + 2 * kPlaces);
  static constexpr int kAlignment = 1024;
  static_assert(kPlaces >= 3);

  // Of a tile of rows, at most.
  __host__ __device__ static int tokens(int h) { return kRows % h == 0 ? kRows / h : kRows / h + 2; }
  // `blocks` selection blocks in all, n chosen by a token, h heads a group.
  __host__ __device__ static int most_entries(int blocks, int n, int h) {
    return n * tokens(h) < blocks ? n * tokens(h) : blocks;
  }
  __host__ __device__ static int entry_words(int h) { return 3 + bit_words(tokens(h)); }
  __host__ __device__ static int choice_words(int blocks, int n, int h) {
    return 1 + most_entries(blocks, n, h) * entry_words(h);
  }
  __host__ __device__ static int bit_words(int bits) { return (bits + 31) / 32; }
  static std::int64_t shared_bytes(int blocks, int n, int h) {
    return kAlignment + kChoicesAt + 4 * (kChoices * std::int64_t{choice_words(blocks, n, h)} + 2 * bit_words(blocks));
  }
  // The second place of Q and dO, and the bytes of all with it.
  static std::int64_t second_rows_at(int blocks, int n, int h) {
    return (shared_bytes(blocks, n, h) - 1) / kAlignment * kAlignment;
  }
  static std::int64_t shared_bytes_ahead(int blocks, int n, int h) {
    return kAlignment + second_rows_at(blocks, n, h) + kKeysAt;
  }
};

// 64 rows (token, head) for each consumer warpgroup.
struct JointTile {
  int b, group, first_row;
};

template <typename S>
struct JointWork {
  const AttentionForward& p;
  const Ways& ways;
  Heads heads;
  int rows, tiles, parts;  // of a group; of all; of 64 keys, a block

  __device__ JointWork(const AttentionForward& problem, const Ways& chosen)
      : p(problem),
        ways(chosen),
        heads(p.Hq / p.G),
        rows(p.S * heads.h),
        tiles((rows + S::kRows - 1) / S::kRows * p.B * p.G),
        parts((p.geometry.l_sel + kKeyTile - 1) / kKeyTile) {}
  // The most blocks first; the groups of a batch side by side.
  __device__ JointTile tile(int number) const {
    const int groups = p.B * p.G, which = number % groups;
    return {which / p.G, which % p.G, ((rows - 1) / S::kRows - number / groups) * S::kRows};
  }
  // Whether a warpgroup's rows go jointly: chunks that do or do not are whole warpgroups' rows.
  __device__ bool has(const JointTile& tile, int warpgroup) const {
    const int row = tile.first_row + warpgroup * S::kWarpgroupRows;
    return row < rows && jointly(heads.token(row));
  }
  __device__ bool has_any(const JointTile& tile) const {
    bool any = false;
#pragma unroll
    for (int warpgroup = 0; warpgroup < S::kWarpgroups; ++warpgroup) any |= has(tile, warpgroup);
    return any;
  }

 private:
  __device__ bool jointly(int t) const {
    return !ways.jointly || t < ways.first || ways.jointly[(t - ways.first) / ways.chunk];
  }
};

// What a tile of rows walks through: the blocks that any of its tokens chose, ascending, and who did.
template <typename S>
class JointChoice {
 public:
  struct Entry {
    int first, last;        // its keys are first .. last - 1
    unsigned warpgroups;    // bit i: whether a row of warpgroup i chose it
    const unsigned* chose;  // bit i % 32 of word i / 32: the tile's i-th token
  };
  // What a thread with rows of two tokens wants to know of an entry, as it was read.
  struct Words {
    const unsigned* entry;
    int step, word[2];  // to the next entry; of an entry
    unsigned bit[2], warpgroups, chose[2];
    int first, last;

    struct Keys {
      int first, last;
      bool chosen[2];
    };
    __device__ void advance() { entry += step; }
    __device__ void read() {
      first = static_cast<int>(entry[0]), last = static_cast<int>(entry[1]), warpgroups = entry[2];
      chose[0] = entry[word[0]], chose[1] = entry[word[1]];
    }
    // 64 of its keys.
    __device__ Keys keys(int part) const {
      return {first + part * kKeyTile, last, {(chose[0] & bit[0]) != 0, (chose[1] & bit[1]) != 0}};
    }
  };

  // `place`: of S::kChoices.
  __device__ JointChoice(const AttentionForward& p, char* shared, int place)
      : entry_words_(S::entry_words(p.Hq / p.G)),
        count_(reinterpret_cast<unsigned*>(shared + S::kChoicesAt) +
               place * S::choice_words(p.selection.J, p.geometry.n, p.Hq / p.G)) {}

  __device__ int count() const { return static_cast<int>(*count_); }
  __device__ Entry entry(int i) const {
    const unsigned* own = words(i);
    return {static_cast<int>(own[0]), static_cast<int>(own[1]), own[2], own + 3};
  }

  // Of the first entry; nothing is read yet.
  __device__ Words words_of(unsigned token, unsigned other) const {
    Words x;
    x.entry = words(0), x.step = entry_words_;
    x.word[0] = static_cast<int>(3 + token / 32), x.word[1] = static_cast<int>(3 + other / 32);
    x.bit[0] = 1u << token % 32, x.bit[1] = 1u << other % 32;
    return x;
  }

  // By the loaders (`loader` of S::kLoaders, who meet at barrier 1).
  __device__ void collect(const JointWork<S>& work, const JointTile& tile, char* shared, int loader) const {
    const AttentionForward& p = work.p;
    const int n = p.geometry.n, h = work.heads.h, first_t = work.heads.token(tile.first_row);
    const int tokens = work.heads.token(min(tile.first_row + S::kRows, work.rows) - 1) - first_t + 1;
    const int block_words = S::bit_words(p.selection.J);
    // Of all blocks: whether any token chose it, and how many of those stand before a word's.
    unsigned* const any =
        reinterpret_cast<unsigned*>(shared + S::kChoicesAt) + S::kChoices * S::choice_words(p.selection.J, n, h);
    unsigned* const before = any + block_words;
    bool has[S::kWarpgroups];
#pragma unroll
    for (int warpgroup = 0; warpgroup < S::kWarpgroups; ++warpgroup) has[warpgroup] = work.has(tile, warpgroup);
    const auto warpgroups_of = [&](int token) {  // which go jointly and have its rows
      const int row = (first_t + token) * h - tile.first_row;
      unsigned own = 0;
#pragma unroll
      for (int warpgroup = 0; warpgroup < S::kWarpgroups; ++warpgroup)
        if (has[warpgroup] && row < (warpgroup + 1) * S::kWarpgroupRows && row + h > warpgroup * S::kWarpgroupRows)
          own |= 1u << warpgroup;
      return own;
    };
    // Calls action(token, block) for this loader's share of what the tokens chose: a place of every token, 2^lanes
    // loaders a token.
    const int lanes = 32 - __clz(n - 1), place = loader & ((1 << lanes) - 1);
    const int first = loader >> lanes, stride = S::kLoaders >> lanes;
    const int* const numbers = p.blocks + ((static_cast<std::int64_t>(tile.b) * p.S + first_t) * p.G + tile.group) * n;
    const auto each_choice = [&](auto&& action) {
      if (place >= n || first >= stride) return;
      constexpr int kTogether = 4;  // asked for before the first is waited for
#pragma unroll 1
      for (int next = first; next < tokens; next += kTogether * stride) {
        int number[kTogether];
#pragma unroll
        for (int x = 0; x < kTogether; ++x) number[x] = numbers[min(next + x * stride, tokens - 1) * p.G * n + place];
#pragma unroll
        for (int x = 0; x < kTogether; ++x) {
          const int token = next + x * stride;
          if (token >= tokens || warpgroups_of(token) == 0) continue;
          const int t = first_t + token, position = t - (p.packed.first_token ? p.packed.first_token[t] : 0);
          if (number[x] < 0 || std::int64_t{number[x]} * p.geometry.l_sel > position) continue;
          action(token, number[x] + (p.selection.document_blocks ? p.selection.document_blocks[t] : 0));
        }
      }
    };
    const auto place_of = [&](int block) {
      return before[block / 32] + __popc(any[block / 32] & ((1u << block % 32) - 1));
    };

    bar_sync(1, S::kLoaders);  // the last tile's have been used
    for (int word = loader; word < block_words; word += S::kLoaders) any[word] = 0;
    bar_sync(1, S::kLoaders);
    each_choice([&](int, int block) { atomicOr(&any[block / 32], 1u << block % 32); });
    bar_sync(1, S::kLoaders);
    if (loader < 32) {
      unsigned all = 0;
#pragma unroll 1
      for (int first = 0; first < block_words; first += 32) {
        const int word = first + loader;
        const unsigned own = word < block_words ? __popc(any[word]) : 0;
        unsigned up_to = own;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
          const unsigned other = __shfl_up_sync(0xffffffffu, up_to, distance);
          if (loader >= distance) up_to += other;
        }
        if (word < block_words) before[word] = all + up_to - own;
        all += __shfl_sync(0xffffffffu, up_to, 31);
      }
      if (loader == 0) *count_ = all;
    }
    bar_sync(1, S::kLoaders);
#pragma unroll 1
    for (int block = loader; block < p.selection.J; block += S::kLoaders) {
      if (!(any[block / 32] >> block % 32 & 1)) continue;
      unsigned* const own = words(place_of(block));
      const int first = p.selection.starts ? p.selection.starts[block] : block * p.geometry.l_sel;
      own[0] = first;
      own[1] = p.selection.ends ? p.selection.ends[block] : min(p.S, first + p.geometry.l_sel);
      for (int word = 2; word < entry_words_; ++word) own[word] = 0;
    }
    bar_sync(1, S::kLoaders);
    each_choice([&](int token, int block) {
      unsigned* const own = words(place_of(block));
      atomicOr(&own[2], warpgroups_of(token));
      atomicOr(&own[3 + token / 32], 1u << token % 32);
    });
  }

 private:
  int entry_words_;
  unsigned* count_;

  __device__ unsigned* words(int i) const { return count_ + 1 + i * entry_words_; }
};

// The places of a warpgroup's rows, one or two (`ahead`: 0, 1), as a ring.
struct JointRowRing {
  unsigned ahead, step = 0;
  __device__ int place() const { return static_cast<int>(step & ahead); }
  __device__ std::uint32_t parity() const { return step >> ahead & 1; }
  __device__ void advance() { ++step; }
};

template <typename S>
struct JointPlaces {
  char* base;
  int second_rows;  // 0: none

  __device__ JointRowRing row_ring() const { return {second_rows > 0 ? 1U : 0U}; }

  __device__ std::uint32_t at(int offset) const { return shared_address(base) + offset; }
  __device__ std::uint32_t q(int warpgroup, int place) const {
    return at((place ? second_rows : 0) + warpgroup * S::kRowBytes);
  }
  __device__ static std::uint32_t o_of(std::uint32_t q) { return q + S::Q::kBytes; }
  __device__ std::uint32_t k(int place) const { return at(S::kKeysAt + place * S::kKeyBytes); }
  __device__ std::uint32_t v(int place) const { return k(place) + S::K::kBytes; }
  __device__ std::uint32_t barrier(int i) const { return at(S::kBarriersAt + i * 8); }
  __device__ std::uint32_t q_full(int warpgroup, int place) const {
    return barrier(place * S::kWarpgroups + warpgroup);
  }
  __device__ std::uint32_t q_empty(int warpgroup, int place) const { return q_full(warpgroup, 2 + place); }
  __device__ std::uint32_t choice_full(int place) const { return barrier(4 * S::kWarpgroups + place); }
  __device__ std::uint32_t choice_empty(int place) const { return choice_full(S::kChoices + place); }
  __device__ std::uint32_t full(int place) const { return choice_full(2 * S::kChoices + place); }
  __device__ std::uint32_t empty(int place) const { return full(S::kPlaces + place); }

  __device__ void start_barriers() const {
    for (int i = 0; i < 2 * S::kWarpgroups; ++i) {  // of both places
      mbarrier_init(q_full(i, 0), 32);
      mbarrier_init(q_empty(i, 0), 4);
    }
    for (int i = 0; i < S::kChoices; ++i) {
      mbarrier_init(choice_full(i), S::kLoaders);
      mbarrier_init(choice_empty(i), 1 + S::kConsumerWarps);
    }
    for (int i = 0; i < S::kPlaces; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), S::kConsumerWarps);
    }
    fence_mbarrier_init();
  }
};

}  // namespace nsa::kernels::hopper
