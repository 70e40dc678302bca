// The first launch: every tile of keys that is known without a choice, a CTA each. Tiles of compressed keys leave the
// scores of their selection blocks as well (Eq 9), a head each.
#pragma once

#include "nsa/kernels/decode/tile.cuh"
#include "nsa/kernels/device/early.cuh"

namespace nsa::kernels {

// Score of the blocks of a compressed tile for each head: the weights of the compressed blocks that overlap it, times
// the overlap in strides. What the keys before a block give and what its own keys give are two sums, added: so a block
// at the edge of two tiles is summed as all others (Note [Whole powers]). The last row is what this tile's keys give to
// the next tile's first block.
__device__ inline void score_blocks(float* scores, const float* weights, const DecodeCuts& cuts, const Geometry& g) {
  const int strides = cuts.block_keys, reach = g.l / g.d;
  for (int i = static_cast<int>(threadIdx.x); i < (cuts.tile_blocks + 1) * kDecodeHeads; i += kDecodeThreads) {
    const int head = i % kDecodeHeads, block = i / kDecodeHeads;
    const float* const own = weights + head * DecodeShared::kWeightRow + block * strides;
    float before = 0, inside = 0;
    if (block > 0)
      for (int c = 1 - reach; c < 0; ++c) before += static_cast<float>(c + reach) * own[c];
    if (block < cuts.tile_blocks)
      for (int c = 0; c < strides; ++c) inside += static_cast<float>(min(reach, strides - c)) * own[c];
    scores[i] = before + inside;
  }
}

// Grid: (tiles, pairs).
template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    decode_parts_kernel(const __grid_constant__ Decode p, const __grid_constant__ DecodeCuts cuts,
                        const __grid_constant__ DecodeWork work) {
  using Tile = DecodeTile<T, Dk, Dv>;
  extern __shared__ __align__(128) char shared[];
  griddepcontrol_launch_dependents();
  const int pair = static_cast<int>(blockIdx.y), b = pair / p.G, group = pair % p.G, heads = p.Hq / p.G;
  const int item = static_cast<int>(blockIdx.x);
  const DecodeShared at(Dk, Dv, kDecodeKeys, 0, 0);

  const auto keys = [&]() -> DecodeKeys {
    int tile = item;
    if (tile < cuts.compressed) {
      const int first = tile * cuts.tile_keys();
      return keys_from<T>(p.k_cmp, p.v_cmp, b, group, first, min(p.N, first + cuts.tile_keys()));
    }
    tile -= cuts.compressed;
    if (tile < cuts.window) return keys_from<T>(p.k_win, p.v_win, b, group, tile * kDecodeKeys, p.window);
    tile -= cuts.window;
    if (tile < cuts.first) return keys_from<T>(p.k_sel, p.v_sel, b, group, tile * kDecodeKeys, p.geometry.l_sel);
    tile -= cuts.first;
    return keys_from<T>(p.k_sel, p.v_sel, b, group, cuts.last_token + tile * kDecodeKeys, p.t + 1);
  }();
  Tile::load_queries(shared, p, b, group);
  Tile::load(shared, at, keys);
  if (item == 0 && threadIdx.x == 0) work.finished[pair] = 0;

  const std::int64_t part = static_cast<std::int64_t>(pair) * cuts.parts() + item;
  Tile::attend(shared, at, keys.count, heads, p.scale, work.o + part * heads * Dv, work.stats + part * kDecodeHeads,
               [&](const float* weights) {
                 if (item >= cuts.compressed || cuts.chosen == 0) return;
                 const std::int64_t tile = static_cast<std::int64_t>(pair) * cuts.compressed + item;
                 score_blocks(work.scores + tile * (cuts.tile_blocks + 1) * kDecodeHeads, weights, cuts, p.geometry);
               });
}

}  // namespace nsa::kernels
