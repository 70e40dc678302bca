// The first launch: the compressed keys, a CTA a tile. It leaves the tile's weights for the second launch, which
// multiplies them with the values, and the scores of its selection blocks (Eq 9), a head each.
#pragma once

#include "nsa/kernels/decode/tile.cuh"
#include "nsa/kernels/device/early.cuh"

namespace nsa::kernels {

// Score of the blocks of a compressed tile for each head: the weights of the compressed blocks that overlap it, times
// the overlap in strides. What the keys before a block give and what its own keys give are two sums, added: so a block
// at the edge of two tiles is summed as all others (Note [Whole powers]). The last row is what this tile's keys give to
// the next tile's first block.
__device__ inline void score_blocks(float* scores, const float* weights, const DecodeCuts& cuts) {
  const int strides = cuts.block_keys, reach = cuts.reach, thread = static_cast<int>(threadIdx.x);
  const float* const row = weights + thread % kDecodeHeads * DecodeShared::kWeightRow;
  constexpr int kAtOnce = kDecodeThreads / kDecodeHeads;
  const auto is_of_four = strides == 4 && reach == 2;  // blocks of 64, compressed ones of 32 every 16
#pragma unroll 1
  for (int block = thread / kDecodeHeads; block <= cuts.tile_blocks; block += kAtOnce) {
    const float* const own = row + block * strides;
    float before = 0, inside = 0;
    if (is_of_four) {
      const float4 x = *reinterpret_cast<const float4*>(own);  // the padding after the last block
      if (block > 0) before = own[-1];
      if (block < cuts.tile_blocks) inside = fmaf(2.f, x.z, fmaf(2.f, x.y, 2.f * x.x)) + x.w;
    } else {
      if (block > 0)
#pragma unroll 1
        for (int c = 1 - reach; c < 0; ++c) before += static_cast<float>(c + reach) * own[c];
      if (block < cuts.tile_blocks)
#pragma unroll 1
        for (int c = 0; c < strides; ++c) inside += static_cast<float>(min(reach, strides - c)) * own[c];
    }
    scores[block * kDecodeHeads + thread % kDecodeHeads] = before + inside;
  }
}

// Grid: (compressed tiles, G, B). Early too: all that it reads may be the work of the kernel before, so until it
// has waited it brings the keys to L2 alone.
template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(kDecodeThreads, 3)
    decode_scores_kernel(const __grid_constant__ Decode p, const __grid_constant__ DecodeCuts cuts,
                         const __grid_constant__ DecodeWork work) {
  using Tile = DecodeTile<T, Dk, Dv>;
  extern __shared__ __align__(128) char shared[];
  const int tile = static_cast<int>(blockIdx.x), group = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int pair = b * p.G + group;
  const DecodeShared at(Dk, 0, kDecodeKeys, 0);
  const DecodeKeys keys = compressed_keys<T>(p, cuts, b, group, tile);
  auto queries = Tile::queries(shared, p, cuts, b, group);
  typename Tile::template Copy<Dk> copy(shared + at.keys, keys.k, keys.k_stride, keys.count);
  copy.bring();
  griddepcontrol_wait();
  queries.ask();
  copy.ask();
  cp_async_commit();
  cp_async_commit();                   // weigh() waits for all groups but the last
  griddepcontrol_launch_dependents();  // the next launch's copies come after these

  const std::int64_t place = static_cast<std::int64_t>(pair) * cuts.compressed + tile;
  Tile::weigh(shared, at, keys.count, p.scale, work.stats_of(cuts, pair) + tile * kDecodeHeads);
  score_blocks(work.scores + score_row(cuts, static_cast<int>(place), 0),
               reinterpret_cast<const float*>(shared + DecodeShared::kWideWeights), cuts);
  Tile::store_weights(shared, work.weights + place * kDecodeThreads);
}

}  // namespace nsa::kernels
