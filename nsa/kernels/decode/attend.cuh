// The third launch: attention over every tile of values, a CTA each, which leaves a part.
//
//   chosen block      wait for the second launch ─> choice ─> ask for the block ─> weights ─> part
//   compressed tile   ask for the values ─> wait ─> the first launch's weights ─> part
//   window, first block, last tokens              ask for keys and values ─> weights ─> wait ─> part
#pragma once

#include "nsa/kernels/decode/choice.cuh"
#include "nsa/kernels/device/early.cuh"

namespace nsa::kernels {

// The forced blocks and the chosen ones, in order.
__device__ inline void write_chosen_blocks(const Decode& p, const DecodeCuts& cuts, int pair, const int* list) {
  const int i = static_cast<int>(threadIdx.x), n = p.geometry.n;
  if (i >= n) return;
  if (i == 0 || i > cuts.wanted) {
    p.blocks[pair * n + i] = i == 0 ? 0 : cuts.current - (n - 1 - i);
    return;
  }
  int place = 1;
#pragma unroll 1
  for (int k = 0; k < cuts.wanted; ++k) place += list[k] < list[i - 1] ? 1 : 0;
  p.blocks[pair * n + place] = list[i - 1];
}
// Of a part whose tile is known without a choice.
template <typename T>
__device__ inline DecodeKeys known_keys(const Decode& p, const DecodeCuts& cuts, int b, int group, int part) {
  if (part < cuts.compressed) return compressed_keys<T>(p, cuts, b, group, part);
  part -= cuts.compressed;
  if (part < cuts.window) return keys_from<T>(p.k_win, p.v_win, b, group, part * kDecodeKeys, p.window);
  part -= cuts.window;
  if (part < cuts.first) return keys_from<T>(p.k_sel, p.v_sel, b, group, part * kDecodeKeys, p.geometry.l_sel);
  part -= cuts.first;
  return keys_from<T>(p.k_sel, p.v_sel, b, group, cuts.last_token + part * kDecodeKeys, p.t + 1);
}
// The blocks that are taken without a choice: all of them, or (n = 3) the first and the last two.
__device__ inline void write_known_blocks(const Decode& p, const DecodeCuts& cuts, int pair) {
  const int current = cuts.current, n = p.geometry.n, i = static_cast<int>(threadIdx.x);
  if (i < n) p.blocks[pair * n + i] = current < n ? (i <= current ? i : -1) : i == 0 ? 0 : current - (n - 1 - i);
}

// Grid: (G, B, tiles), chosen blocks' tiles first, which have most to wait for. Not every CTA has room beside the first
// launch's.
template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    decode_attend_kernel(const __grid_constant__ Decode p, const __grid_constant__ DecodeCuts cuts,
                         const __grid_constant__ DecodeWork work, const __grid_constant__ DecodeShared at) {
  using Tile = DecodeTile<T, Dk, Dv>;
  extern __shared__ __align__(128) char shared[];
  __shared__ int list[kMostBlocks];
  const int group = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y), pair = b * p.G + group;
  const int place = static_cast<int>(blockIdx.z), heads = cuts.heads;
  const bool chosen = place < cuts.chosen;
  const int item = chosen ? place : place - cuts.chosen, part = chosen ? cuts.known() + item : item;
  // Of a chosen block: its place in the list, and where in it the tile begins.
  const int own = cuts.block_tiles == 1 ? item : item / cuts.block_tiles;
  const int within = (item - own * cuts.block_tiles) * kDecodeKeys;
  const bool weighed = part < cuts.compressed && cuts.chosen > 0;  // by the first launch
  float2* const stats = work.stats_of(cuts, pair) + part * kDecodeHeads;
  // Of a chosen block everything but its place.
  const DecodeKeys keys = chosen ? keys_from<T>(p.k_sel, p.v_sel, b, group, within, p.geometry.l_sel)
                                 : known_keys<T>(p, cuts, b, group, part);
  auto queries = Tile::queries(shared, p, cuts, b, group);
  typename Tile::template Copy<Dk> k(shared + at.keys, keys.k, keys.k_stride, keys.count);
  typename Tile::template Copy<Dv> v(shared + at.values, keys.v, keys.v_stride, keys.count);

  if (!weighed) queries.ask();
  if (chosen) {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    choose_blocks(list, reinterpret_cast<std::uint64_t*>(shared + DecodeShared::kWeights),
                  reinterpret_cast<std::uint64_t*>(shared + at.keys), work.totals_of(cuts, pair), cuts.current - 2,
                  cuts.wanted);
    const std::int64_t first = static_cast<std::int64_t>(list[own]) * p.geometry.l_sel;
    k.source += first * keys.k_stride;
    v.source += first * keys.v_stride;
  }
  if (!weighed) k.ask();
  cp_async_commit();
  v.ask();
  cp_async_commit();
  if (!chosen) {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
  } else if (item == 0 && p.blocks) {
    write_chosen_blocks(p, cuts, pair, list);
  }
  if (weighed) {
    const std::int64_t tile = static_cast<std::int64_t>(pair) * cuts.compressed + part;
    Tile::load_weights(shared, work.weights + tile * kDecodeThreads);
  }
  if (cuts.chosen == 0 && item == 0 && p.blocks) write_known_blocks(p, cuts, pair);
  if (!weighed) Tile::weigh(shared, at, keys.count, p.scale, stats);
  Tile::multiply(shared, at, keys.count, heads,
                 work.o_of(p, cuts, pair) + static_cast<std::int64_t>(part) * heads * Dv);
}

}  // namespace nsa::kernels
