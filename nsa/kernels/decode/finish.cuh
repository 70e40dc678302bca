// The second launch: the choice, attention over a chosen block for each CTA of a pair, and the gated sum.
//
//   wait for the first launch ─> choice ─> ask for the block ─┬─> while it comes: a slice of the compressed and the
//                                                             │   window branch, taken together and gated
//                                                             └─> attention over it ─> its part
//   the CTA of a pair that ends last: the parts of the selected branch together, gated, and the output
#pragma once

#include "nsa/kernels/decode/choice.cuh"
#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/gates.cuh"

namespace nsa::kernels {

// Sum of `count` parts of [h][Dv], four values from `e` on, by their table of weights; every `step`-th from `first` on.
template <int Dv>
__device__ inline float4 sum_of_parts(const float* o, const float* table, int count, int first, int step, int heads,
                                      int e) {
  float4 sum = make_float4(0, 0, 0, 0);
  const int head = e / Dv;
#pragma unroll 8
  for (int i = first; i < count; i += step) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(o + static_cast<std::int64_t>(i) * heads * Dv + e));
    const float weight = table[i * kDecodeHeads + head];
    sum.x = fmaf(weight, x.x, sum.x), sum.y = fmaf(weight, x.y, sum.y);
    sum.z = fmaf(weight, x.z, sum.z), sum.w = fmaf(weight, x.w, sum.w);
  }
  return sum;
}
__device__ inline float4 scaled(const float4& x, float by) {
  return make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
}
__device__ inline float4 added(const float4& x, const float4& y) {
  return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}
template <typename T>
__device__ inline void store_four(const Rows& rows, int b, int head, int column, const float4& x) {
  T* const to = static_cast<T*>(rows.data) + b * rows.batch + head * rows.head + column;
  *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(x.x, x.y), pack<T>(x.z, x.w));
}

// What the CTA of a pair knows of it.
struct DecodePair {
  int b, group, heads;
  float gates[kBranches];
  const float* o;  // of the first part
  const float2* stats;
  float* base;

  __device__ DecodePair(const Decode& p, const DecodeCuts& cuts, const DecodeWork& work, int pair)
      : b(pair / p.G),
        group(pair % p.G),
        heads(p.Hq / p.G),
        o(work.o + static_cast<std::int64_t>(pair) * cuts.parts() * heads * p.Dv),
        stats(work.stats + static_cast<std::int64_t>(pair) * cuts.parts() * kDecodeHeads),
        base(work.base + static_cast<std::int64_t>(pair) * heads * p.Dv) {}
  template <typename T>
  __device__ void load_gates(const Decode& p) {
    for (int i = 0; i < kBranches; ++i) {
      const int place = (b * p.G + group) * kBranches + i;
      gates[i] = p.gates_fp32 ? static_cast<const float*>(p.gates)[place] : wide(static_cast<const T*>(p.gates)[place]);
    }
  }
};

// The slice of CTA `own` of `ctas`: compressed and window branch, gated, into the pair's base. Four threads share four
// values' parts. `of_cmp`, `of_win`: the tables of weights.
template <typename T, int Dv>
__device__ inline void gate_slice(const Decode& p, const DecodeCuts& cuts, const DecodePair& pair, char* shared,
                                  int own, int ctas, const float* of_cmp, const float* of_win,
                                  const float (*inverse)[kDecodeHeads]) {
  constexpr int kColumns = 64, kLanes = kDecodeThreads / kColumns;
  const int all = pair.heads * Dv / 4, each = (all + ctas - 1) / ctas;
  const int begin = own * each, end = min(begin + each, all);
  const int column = static_cast<int>(threadIdx.x) % kColumns, lane = static_cast<int>(threadIdx.x) / kColumns;
  float4* const sums = reinterpret_cast<float4*>(shared + DecodeShared::kWideWeights);  // [2][kLanes][kColumns]
  const float* const windows = pair.o + static_cast<std::int64_t>(cuts.compressed) * pair.heads * Dv;
  for (int from = begin; from < end; from += kColumns) {
    const int e = (from + column) * 4;
    const bool valid = from + column < end;
    if (valid) {
      sums[lane * kColumns + column] = sum_of_parts<Dv>(pair.o, of_cmp, cuts.compressed, lane, kLanes, pair.heads, e);
      sums[(kLanes + lane) * kColumns + column] =
          sum_of_parts<Dv>(windows, of_win, cuts.window, lane, kLanes, pair.heads, e);
    }
    __syncthreads();
    if (valid && lane == 0) {
      float4 branch[2];
      const int head = e / Dv;
      for (int i = 0; i < 2; ++i) {
        branch[i] = sums[i * kLanes * kColumns + column];
        for (int k = 1; k < kLanes; ++k) branch[i] = added(branch[i], sums[(i * kLanes + k) * kColumns + column]);
        branch[i] = scaled(branch[i], inverse[i][head]);
      }
      if (cuts.compressed == 0) branch[0] = make_float4(0, 0, 0, 0);  // nothing to see: exactly 0
      const int place = pair.group * pair.heads + head;
      if (p.branch[0].data) store_four<T>(p.branch[0], pair.b, place, e % Dv, branch[0]);
      if (p.branch[2].data) store_four<T>(p.branch[2], pair.b, place, e % Dv, branch[1]);
      *reinterpret_cast<float4*>(pair.base + e) =
          added(scaled(branch[0], pair.gates[0]), scaled(branch[1], pair.gates[2]));
    }
    __syncthreads();
  }
}

// Grid: (CTAs of a pair, pairs).
template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    decode_finish_kernel(const __grid_constant__ Decode p, const __grid_constant__ DecodeCuts cuts,
                         const __grid_constant__ DecodeWork work, const __grid_constant__ DecodeShared at) {
  using Tile = DecodeTile<T, Dk, Dv>;
  extern __shared__ __align__(128) char shared[];
  __shared__ float inverse[kBranches][kDecodeHeads];  // of the compressed, the window and the selected branch's sums
  __shared__ int list[kMostBlocks];
  __shared__ bool last;
  const int number = static_cast<int>(blockIdx.y), own = static_cast<int>(blockIdx.x);
  const int ctas = static_cast<int>(gridDim.x), current = p.t / p.geometry.l_sel, n = p.geometry.n;
  DecodePair pair(p, cuts, work, number);
  if (cuts.chosen > 0) Tile::load_queries(shared, p, pair.b, pair.group);
  pair.load_gates<T>(p);
  griddepcontrol_wait();

  float* const of_cmp = reinterpret_cast<float*>(shared + at.table);
  float* const of_win = of_cmp + cuts.compressed * kDecodeHeads;
  float* const edges = of_win + cuts.window * kDecodeHeads;
  const float* const scores = work.scores + number * score_row(cuts, cuts.compressed, 0);
  if (cuts.chosen > 0) load_edges(edges, scores, cuts);
  weigh_parts(of_cmp, inverse[0], shared, pair.stats, cuts.compressed);
  int count = 0;
  if (cuts.chosen > 0) {
    choose_blocks(list, reinterpret_cast<int*>(shared + at.keys), shared, current - 2, cuts.wanted, scores, edges,
                  of_cmp, inverse[0], cuts, pair.heads);
    const int block = list[own / cuts.block_tiles], first = block * p.geometry.l_sel;
    const DecodeKeys keys = keys_from<T>(p.k_sel, p.v_sel, pair.b, pair.group,
                                         first + own % cuts.block_tiles * kDecodeKeys, first + p.geometry.l_sel);
    count = keys.count;
    Tile::load(shared, at, keys);
  }
  if (own == 0 && p.blocks)
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kDecodeThreads) {
      const bool all = current < n;
      p.blocks[number * n + i] = all                ? (i <= current ? i : -1)
                                 : i == 0           ? 0
                                 : i <= cuts.wanted ? list[i - 1]
                                                    : current - (n - 1 - i);
    }
  weigh_parts(of_win, inverse[1], shared, pair.stats + cuts.compressed * kDecodeHeads, cuts.window);
  gate_slice<T, Dv>(p, cuts, pair, shared, own, ctas, of_cmp, of_win, inverse);
  if (cuts.chosen > 0) {
    const std::int64_t part = static_cast<std::int64_t>(number) * cuts.parts() + cuts.known() + own;
    Tile::attend(shared, at, count, pair.heads, p.scale, work.o + part * pair.heads * Dv,
                 work.stats + part * kDecodeHeads, [](const float*) {});
  }

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&work.finished[number], 1) == ctas - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  const int skipped = cuts.compressed + cuts.window, parts = cuts.parts() - skipped;
  weigh_parts(of_cmp, inverse[2], shared, pair.stats + skipped * kDecodeHeads, parts);
  const float* const selected = pair.o + static_cast<std::int64_t>(skipped) * pair.heads * Dv;
  for (int e = static_cast<int>(threadIdx.x) * 4; e < pair.heads * Dv; e += kDecodeThreads * 4) {
    const int head = e / Dv, place = pair.group * pair.heads + head;
    const float4 base = __ldcg(reinterpret_cast<const float4*>(pair.base + e));
    const float4 sel = scaled(sum_of_parts<Dv>(selected, of_cmp, parts, 0, 1, pair.heads, e), inverse[2][head]);
    if (p.branch[1].data) store_four<T>(p.branch[1], pair.b, place, e % Dv, sel);
    store_four<T>(p.o, pair.b, place, e % Dv, added(base, scaled(sel, pair.gates[1])));
  }
}

}  // namespace nsa::kernels
