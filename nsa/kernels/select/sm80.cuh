// Scores of the selection blocks for a few tokens of one group, and the best of them (Eq 8 to 11).
//
// Note [No mask]
// Block 0, the current one c = t/l' and the one before are forced; the others that may be chosen are 1..c-2. They
// overlap the compressed blocks i < (c-1) l'/d alone, which end before (c-1) l' - d + l <= c l' - d and so are complete
// at t. Every score that is read is a sum over visible blocks; what lies beyond is computed with the tile and never
// read. A token with c < n takes every block there is and needs no score.
#pragma once

#include <type_traits>

#include "nsa/kernels/select/rows.cuh"
#include "nsa/kernels/select/sm80_scores.cuh"

namespace nsa::kernels {

template <typename Plan>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kCtasPerSm)
    select_kernel(const __grid_constant__ Select p, const __grid_constant__ Overlap o) {
  extern __shared__ __align__(128) char shared[];
  const std::uint32_t keys = shared_address(shared), queries = keys + Plan::kListsAt;
  float* offsets = reinterpret_cast<float*>(shared + (Plan::kStages - 1) * Plan::kKeyBytes);  // a stage not yet in use
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  Entry* lists = reinterpret_cast<Entry*>(shared + Plan::kListsAt) + warp * Plan::kWarpTokens * kList;

  const int want = p.geometry.n - 3;  // by score
  // The last tokens see most keys: they go first.
  const int groups = p.B * p.G, tiles = gridDim.x / groups;
  const int b = blockIdx.x % groups / p.G, group = blockIdx.x % groups % p.G;
  const int t0 = (tiles - 1 - static_cast<int>(blockIdx.x / groups)) * Plan::kTokens;
  const TokenTile tile{b, group, t0, min(Plan::kTokens, p.S - t0)};

  Columns<Plan> columns;
  bool loaded = false;
  for (int token = 0; token < tile.count;) {  // a document's tokens at a time
    const DocumentTokens document(p, tile, token);
    const bool scored = document.scored(p);
    Best<Plan::kQuadTokens> best[Plan::kQuads];
    if (scored) {
      if (!loaded) Columns<Plan>::start_copies(queries, p, b, group, t0);
      cp_async_commit();
      const int steps = ((document.current - 1) * o.stride + Plan::kKeys - 1) / Plan::kKeys;
      KeyCopies<Plan> copies(keys, p, b, group, document.first_key);
#pragma unroll
      for (int s = 0; s < Plan::kStages - 1; ++s) {
        if (s < steps) copies.start(p, s);
        cp_async_commit();
      }
      if (!loaded) {
        Columns<Plan>::stage_offsets(offsets, p, b, group, t0);
        cp_async_wait<Plan::kStages - 1>();
        __syncthreads();
        columns.load(queries, offsets);
        __syncthreads();
        loaded = true;
      }
#pragma unroll
      for (int quad = 0; quad < Plan::kQuads; ++quad) {
        const int k = warp * Plan::kWarpTokens + quad * Plan::kQuadTokens + lane % Plan::kQuadTokens;
        best[quad].last = document.last_choice(p, tile, k);
      }
      std::conditional_t<Plan::kTrapezoid, TrapezoidScores<Plan>, PaperScores<Plan>> scores(
          reinterpret_cast<float*>(shared + Plan::kTrapezoidsAt));
      for (int step = 0; step < steps; ++step) {
        cp_async_wait<Plan::kStages - 2>();
        __syncthreads();
        if (step + Plan::kStages - 1 < steps) copies.start(p, (step + Plan::kStages - 1) % Plan::kStages);
        cp_async_commit();
#pragma unroll 1
        for (int row = 0; row < Plan::kKeys; row += 32) {
          float own[Plan::kQuads][4];
          columns.probabilities(own, keys + step % Plan::kStages * Plan::kKeyBytes, row, p.scale);
          scores.add(own, o, [&](int quad, int block, float score) {
            best[quad].offer(lists + quad * Plan::kQuadTokens * kList, block, score, want);
          });
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int quad = 0; quad < Plan::kQuads; ++quad) {
      Entry* quad_lists = lists + quad * Plan::kQuadTokens * kList;
      if (scored) best[quad].compact(quad_lists, want);
      for (int x = 0; x < Plan::kQuadTokens; ++x) {
        const int k = warp * Plan::kWarpTokens + quad * Plan::kQuadTokens + x;
        if (document.has(k)) write_choice(p, tile, k, document.block_of(p, tile, k), quad_lists + x * kList);
      }
    }
    token = document.end;
  }
}

}  // namespace nsa::kernels
