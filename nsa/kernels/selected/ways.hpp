// Which way the queries of a long sequence's selected branch go, jointly (joint.cuh) or by parts (parts.cuh). What is
// faster depends on how much neighbours share, which only the device knows: it decides, both ways are launched, and the
// CTAs of the other one return at once.
#pragma once

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/plan/limits.hpp"

namespace nsa::kernels::hopper {

// The first queries have few blocks to choose from and always go jointly, the others chunk by chunk. A chunk's way is
// read off the queries before it, so that what comes later changes no bit of a row. In the backward pass, where later
// queries change dK and dV anyway, it can be read off its own.
struct Ways {
  int first = 0, chunk = 0;  // tokens, `first` a multiple of 64, and `chunk` too unless it is the only one
  int* jointly = nullptr;    // of every chunk, 0: by parts; null: the host has decided
  bool by_own = false;       // judged by a chunk's own queries

  [[nodiscard]] int chunks(int S) const { return S > first ? (S - first + chunk - 1) / chunk : 0; }
  // Of the chunk that begins there, for its kernels: they return where it is not 0.
  [[nodiscard]] const int* unless_jointly(std::int64_t begin) const {
    return jointly ? jointly + (begin - first) / chunk : nullptr;
  }
};

// Writes `ways.jointly`: whether the union of blocks that a warpgroup's 64 rows compute costs less than their parts
// (Limits). Looks at kSampledTiles tiles of the last ways.first / 2 tokens before each chunk, or of its own, evenly
// over batch entries, groups and positions.
inline constexpr int kSampledTiles = 16;
void choose_ways(const AttentionForward& p, const Ways& ways, const Limits& limits, cudaStream_t stream);

}  // namespace nsa::kernels::hopper
