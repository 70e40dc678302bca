// How the forward kernel cuts its work and its shared memory.
#pragma once

#include "nsa/kernels/device/heads.cuh"
#include "nsa/kernels/device/interval.cuh"
#include "nsa/kernels/device/ring.cuh"
#include "nsa/kernels/device/rounds.cuh"
#include "nsa/kernels/device/wgmma.cuh"

namespace nsa::kernels::hopper {

// Keys a step, places of the K and V rings and of Q.
template <int Dk_, int Dv_, int Keys, int Stages, int QStages>
struct Shape {
  static constexpr int Dk = Dk_, Dv = Dv_, kKeys = Keys, kStages = Stages, kQStages = QStages;
  static constexpr int kWarpgroups = 3, kRows = 64 * kWarpgroups, kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kConsumerWarps = 4 * kWarpgroups, kLoaders = 96;    // the threads that copy Q's rows
  static constexpr int kProducerRegisters = 32, kConsumerRegisters = 160;  // the launch gives everyone 128
  static constexpr int kSlabRow = 128;                                     // bytes
  static constexpr int kQBytes = kRows * Dk * 2, kKBytes = Keys * Dk * 2, kVBytes = Keys * Dv * 2;
  static constexpr int kK = kQStages * kQBytes, kV = kK + kStages * kKBytes, kBarriers = kV + kStages * kVBytes;
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes = kBarriers + 2 * (kQStages + 2 * kStages) * 8 + kAlignment;
  static_assert(Keys % 16 == 0 && kSharedBytes <= 227 * 1024 && kLoaders % (Dk / 8) == 0);
};

// One tile: rows [first_row, first_row + kRows) of a group, and the keys that any of its queries sees.
struct TileOfRows {
  int b, group, first_row, begin, end;
};

template <typename S>
struct Work {
  const AttentionForward& p;
  Heads heads;
  Interval interval;
  int rows, tiles;

  __device__ explicit Work(const AttentionForward& problem)
      : p(problem),
        heads(p.Hq / p.G),
        interval(p),
        rows(p.S * heads.h),
        tiles((rows + S::kRows - 1) / S::kRows * p.B * p.G) {}
  // The longest intervals first; the groups of a batch side by side.
  __device__ TileOfRows tile(int number) const {
    const int groups = p.B * p.G, which = number % groups;
    const int first_row = ((rows - 1) / S::kRows - number / groups) * S::kRows;
    const int last_row = min(first_row + S::kRows, rows) - 1;
    return {which / p.G, which % p.G, first_row, interval.begin(heads.token(first_row)),
            interval.end(heads.token(last_row))};
  }
  __device__ static int steps(const TileOfRows& tile) {
    return max(0, (tile.end - tile.begin + S::kKeys - 1) / S::kKeys);
  }
};

// The addresses in shared memory.
template <typename S>
struct Places {
  std::uint32_t base;
  __device__ std::uint32_t q(int place) const { return base + place * S::kQBytes; }
  __device__ std::uint32_t k(int place) const { return base + S::kK + place * S::kKBytes; }
  __device__ std::uint32_t v(int place) const { return base + S::kV + place * S::kVBytes; }
  __device__ std::uint32_t barrier(int i) const { return base + S::kBarriers + i * 8; }
  __device__ std::uint32_t q_full(int place) const { return barrier(place); }
  __device__ std::uint32_t q_empty(int place) const { return barrier(S::kQStages + place); }
  __device__ std::uint32_t k_full(int place) const { return barrier(2 * S::kQStages + place); }
  __device__ std::uint32_t k_empty(int place) const { return barrier(2 * S::kQStages + S::kStages + place); }
  __device__ std::uint32_t v_full(int place) const { return barrier(2 * S::kQStages + 2 * S::kStages + place); }
  __device__ std::uint32_t v_empty(int place) const { return barrier(2 * S::kQStages + 3 * S::kStages + place); }

  __device__ void start_barriers() const {
    for (int i = 0; i < S::kQStages; ++i) {
      mbarrier_init(q_full(i), S::kLoaders);
      mbarrier_init(q_empty(i), S::kConsumerWarps);
    }
    for (int i = 0; i < S::kStages; ++i) {
      mbarrier_init(k_full(i), 1);
      mbarrier_init(k_empty(i), S::kConsumerWarps);
      mbarrier_init(v_full(i), 1);
      mbarrier_init(v_empty(i), S::kConsumerWarps);
    }
    fence_mbarrier_init();
  }
};

}  // namespace nsa::kernels::hopper
