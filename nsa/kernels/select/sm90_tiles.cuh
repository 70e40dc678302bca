// How the kernel that chooses blocks cuts its work and its shared memory.
#pragma once

#include <algorithm>

#include "nsa/kernels/device/ring.cuh"
#include "nsa/kernels/device/rounds.cuh"
#include "nsa/kernels/device/slab.cuh"
#include "nsa/kernels/select/rows.cuh"

namespace nsa::kernels::hopper {

// A warpgroup's columns are (token, head) as Note [Transposed scores] in select/sm80_columns.cuh has them: n8 tile p of
// a quad of four tokens holds heads 2p, 2p+1 of token i in the columns 2i, 2i+1, and a thread all heads of token i.
template <int Width, int HeadPairs>
struct SelectShape {
  static constexpr int Dk = Width, kPairs = HeadPairs;
  // Four warpgroups of half the columns, or two: see Note [Products under exponentials].
  static constexpr bool kFour = (Dk == 64 && kPairs == 3) || (Dk <= 128 && kPairs == 8);
  static constexpr int kWarpgroups = kFour ? 4 : 2;
  // Of a warpgroup, of 96 to 128 columns, or 48 and 64.
  static constexpr int kQuads = (kPairs > 4 ? 2 : kPairs > 3 ? 3 : 4) / (kFour ? 2 : 1);
  static constexpr int kTiles = kQuads * kPairs, kColumns = 8 * kTiles;
  static constexpr int kWarpTokens = kQuads, kGroupTokens = 4 * kQuads;  // whose best a warp keeps; a warpgroup's
  static constexpr int kTokens = kWarpgroups * kGroupTokens;
  static constexpr int kThreads = 128 * (kWarpgroups + 1), kConsumerWarps = 4 * kWarpgroups, kLoaders = 96;
  // The launch gives everyone 96 or 168.
  static constexpr int kProducerRegisters = kFour ? 32 : 40, kConsumerRegisters = kFour ? 112 : 232;
  static_assert((kProducerRegisters + kWarpgroups * kConsumerRegisters) * 128 <= 65536);
  static constexpr int kKeys = 64, kStepKeys = 2 * kKeys;    // of a stage, of a step: 32 blocks
  static_assert(kTokens <= 32 && kLoaders % (Dk / 8) == 0);  // DocumentTokens; a loader's chunk

  using Keys = Slab<kKeys, Dk>;
  using Queries = Slab<kColumns, Dk>;
  // Floats a token: those of four tokens, eight neighbouring keys each, fall into all banks.
  static constexpr int kPitch = kStepKeys + 8;

  // Shared memory. Q is one tile ahead where two fit.
  static constexpr int kQStages = Dk == 192 ? 1 : 2, kQBytes = kWarpgroups * Queries::kBytes;
  static constexpr int kListBytes = kTokens * kList * static_cast<int>(sizeof(Entry));
  static constexpr int kProbabilityBytes = kTokens * kPitch * 4, kOffsetBytes = kWarpgroups * kColumns * 4;
  static constexpr int kMostStages = 6, kBarrierBytes = 8 * 2 * (kQStages + kMostStages), kAlignment = 1024;
  static constexpr int kScaleBytes = 16;
  static constexpr int kFixedBytes =
      kQStages * (kQBytes + kOffsetBytes) + kListBytes + kProbabilityBytes + kBarrierBytes + kScaleBytes + kAlignment;
  static constexpr int kStages = std::min(kMostStages, (227 * 1024 - kFixedBytes) / Keys::kBytes);
  static constexpr int kSharedBytes = kFixedBytes + kStages * Keys::kBytes;
  static_assert(kStages >= 3);  // a step's two, and the next one's first

  static constexpr int kKeysAt = kQStages * kQBytes, kListsAt = kKeysAt + kStages * Keys::kBytes;
  static constexpr int kProbabilitiesAt = kListsAt + kListBytes;
  static constexpr int kOffsetsAt = kProbabilitiesAt + kProbabilityBytes;
  static constexpr int kBarriersAt = kOffsetsAt + kQStages * kOffsetBytes, kScaleAt = kBarriersAt + kBarrierBytes;
};

template <typename S>
struct SelectWork {
  const Select& p;
  int tiles;

  // The last tokens see most keys: they go first. The groups of a batch side by side.
  __device__ TokenTile tile(int number) const {
    const int groups = p.B * p.G, which = number % groups;
    const int first = ((p.S - 1) / S::kTokens - number / groups) * S::kTokens;
    return {which / p.G, which % p.G, first, min(S::kTokens, p.S - first)};
  }
  // Of 32 blocks: those below the last one's before (Note [No mask] in select/sm80.cuh) are what is chosen from.
  __device__ int steps(const DocumentTokens& document) const {
    return document.scored(p) ? ((document.current - 1) * 4 + S::kStepKeys - 1) / S::kStepKeys : 0;
  }
  // By a whole warp.
  __device__ bool scored(const TokenTile& tile) const {
    for (int token = 0; token < tile.count;) {
      const DocumentTokens document(p, tile, token);
      if (document.scored(p)) return true;
      token = document.end;
    }
    return false;
  }
};

template <typename S>
struct SelectPlaces {
  char* base;

  __device__ std::uint32_t at(int offset) const { return shared_address(base) + offset; }
  __device__ std::uint32_t q(int place, int warpgroup) const {
    return at(place * S::kQBytes + warpgroup * S::Queries::kBytes);
  }
  __device__ std::uint32_t k(int place) const { return at(S::kKeysAt + place * S::Keys::kBytes); }
  __device__ Entry* lists(int token) const { return reinterpret_cast<Entry*>(base + S::kListsAt) + token * kList; }
  __device__ float* probabilities(int token) const {
    return reinterpret_cast<float*>(base + S::kProbabilitiesAt) + token * S::kPitch;
  }
  __device__ float* offsets(int place) const {
    return reinterpret_cast<float*>(base + S::kOffsetsAt + place * S::kOffsetBytes);
  }
  __device__ volatile float* scale() const { return reinterpret_cast<volatile float*>(base + S::kScaleAt); }
  __device__ std::uint32_t barrier(int i) const { return at(S::kBarriersAt + i * 8); }
  __device__ std::uint32_t q_full(int place) const { return barrier(place); }
  __device__ std::uint32_t q_empty(int place) const { return barrier(S::kQStages + place); }
  __device__ std::uint32_t k_full(int place) const { return barrier(2 * S::kQStages + place); }
  __device__ std::uint32_t k_empty(int place) const { return barrier(2 * S::kQStages + S::kStages + place); }

  __device__ void start_barriers() const {
    for (int i = 0; i < S::kQStages; ++i) {
      mbarrier_init(q_full(i), S::kLoaders);
      mbarrier_init(q_empty(i), S::kConsumerWarps);
    }
    for (int i = 0; i < S::kStages; ++i) {
      mbarrier_init(k_full(i), 1);
      mbarrier_init(k_empty(i), S::kConsumerWarps);
    }
    fence_mbarrier_init();
  }
};

}  // namespace nsa::kernels::hopper
