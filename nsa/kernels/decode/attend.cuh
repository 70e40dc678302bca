// The second launch: attention over every tile of values, a CTA each, which leaves a part.
//
//   chosen block      wait for the first launch ─> choice ─> ask for the block ─> weights ─> part
//   compressed tile   ask for the values ─> wait ─> the first launch's weights ─> part
//   window, first block, last tokens              ask for keys and values ─> weights ─> wait ─> part
#pragma once

#include "nsa/kernels/decode/choice.cuh"
#include "nsa/kernels/device/early.cuh"

namespace nsa::kernels {

// The chosen block's tile of this CTA; `list` has room for all chosen blocks. By all threads together.
template <typename T>
__device__ inline DecodeKeys chosen_keys(const Decode& p, const DecodeCuts& cuts, const DecodeWork& work, char* shared,
                                         const DecodeShared& at, int pair, int own, int* list, float* inverse) {
  const int current = p.t / p.geometry.l_sel, n = p.geometry.n;
  float* const table = reinterpret_cast<float*>(shared + at.keys);
  float* const edges = table + cuts.compressed * kDecodeHeads;
  int* const bits = reinterpret_cast<int*>(edges + cuts.compressed * kDecodeHeads);
  const float* const scores = work.scores + pair * score_row(cuts, cuts.compressed, 0);
  load_edges(edges, scores, cuts);
  weigh_parts(table, inverse, shared, work.stats_of(cuts, pair), cuts.compressed);
  choose_blocks(list, bits, shared, current - 2, cuts.wanted, scores, edges, table, inverse, cuts, p.Hq / p.G);
  if (own == 0 && p.blocks)
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kDecodeThreads)
      p.blocks[pair * n + i] = i == 0 ? 0 : i <= cuts.wanted ? list[i - 1] : current - (n - 1 - i);
  const int first = list[own / cuts.block_tiles] * p.geometry.l_sel;
  return keys_from<T>(p.k_sel, p.v_sel, pair / p.G, pair % p.G, first + own % cuts.block_tiles * kDecodeKeys,
                      first + p.geometry.l_sel);
}
// Of a part whose tile is known without a choice.
template <typename T>
__device__ inline DecodeKeys known_keys(const Decode& p, const DecodeCuts& cuts, int pair, int part) {
  const int b = pair / p.G, group = pair % p.G;
  if (part < cuts.compressed) return compressed_keys<T>(p, cuts, pair, part);
  part -= cuts.compressed;
  if (part < cuts.window) return keys_from<T>(p.k_win, p.v_win, b, group, part * kDecodeKeys, p.window);
  part -= cuts.window;
  if (part < cuts.first) return keys_from<T>(p.k_sel, p.v_sel, b, group, part * kDecodeKeys, p.geometry.l_sel);
  part -= cuts.first;
  return keys_from<T>(p.k_sel, p.v_sel, b, group, cuts.last_token + part * kDecodeKeys, p.t + 1);
}
// The blocks that are taken without a choice: all of them, or (n = 3) the first and the last two.
__device__ inline void write_known_blocks(const Decode& p, int pair) {
  const int current = p.t / p.geometry.l_sel, n = p.geometry.n;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kDecodeThreads)
    p.blocks[pair * n + i] = current < n ? (i <= current ? i : -1) : i == 0 ? 0 : current - (n - 1 - i);
}

// Grid: chosen blocks' tiles of all pairs, which have most to wait for, and then the others. Not every CTA has room
// beside the first launch's.
template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    decode_attend_kernel(const __grid_constant__ Decode p, const __grid_constant__ DecodeCuts cuts,
                         const __grid_constant__ DecodeWork work, const __grid_constant__ DecodeShared at) {
  using Tile = DecodeTile<T, Dk, Dv>;
  extern __shared__ __align__(128) char shared[];
  __shared__ float inverse[kDecodeHeads];
  __shared__ int list[kMostBlocks];
  const int number = static_cast<int>(blockIdx.x), before = p.B * p.G * cuts.chosen, heads = p.Hq / p.G;
  const bool chosen = number < before;
  const int each = chosen ? cuts.chosen : cuts.known(), place = chosen ? number : number - before;
  const int pair = place / each, item = place - pair * each;
  const int part = chosen ? cuts.known() + item : item;
  const bool weighed = part < cuts.compressed && cuts.chosen > 0;  // by the first launch
  float2* const stats = work.stats_of(cuts, pair) + part * kDecodeHeads;
  DecodeKeys keys;

  if (!weighed) Tile::load_queries(shared, p, pair / p.G, pair % p.G);
  if (!chosen) {
    keys = known_keys<T>(p, cuts, pair, part);
    if (!weighed) Tile::load_keys(shared, at, keys);
    Tile::load_values(shared, at, keys);
  }
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (chosen) {
    keys = chosen_keys<T>(p, cuts, work, shared, at, pair, item, list, inverse);
    Tile::load_keys(shared, at, keys);
    Tile::load_values(shared, at, keys);
  } else if (weighed) {
    const std::int64_t tile = static_cast<std::int64_t>(pair) * cuts.compressed + part;
    Tile::load_weights(shared, work.weights + tile * kDecodeThreads);
  }
  if (cuts.chosen == 0 && item == 0 && p.blocks) write_known_blocks(p, pair);
  if (!weighed) Tile::weigh(shared, at, keys.count, p.scale, stats);
  Tile::multiply(shared, at, keys.count, heads,
                 work.o_of(p, cuts, pair) + static_cast<std::int64_t>(part) * heads * Dv);
}

}  // namespace nsa::kernels
