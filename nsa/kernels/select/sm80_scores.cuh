// From probabilities of compressed blocks to scores of selection blocks (Eq 9), by one warp, 32 keys at a time.
#pragma once

#include "nsa/kernels/select/sm80_columns.cuh"

namespace nsa::kernels {

// Selection block j overlaps the compressed blocks j*stride - (reach-1) .. j*stride + stride-1.
struct Overlap {
  int stride, reach;  // l'/d, l/d
};

// Eq 9 for any geometry, by one warp: the weight is the overlap in units of d, a trapezoid over stride + reach - 1
// keys. Sums of blocks that are not complete wait in `partial` (there are at most 34).
template <typename Plan>
struct TrapezoidScores {
  float* probability;        // [kWarpTokens][kPitch]
  float* partial;            // [kWarpTokens][kPartials], block j at j % kPartials
  int start = 0, block = 0;  // the next key, and the block in whose stride it lies

  __device__ explicit TrapezoidScores(float* shared)
      : probability(shared + threadIdx.x / 32 * Plan::kWarpTokens * (Plan::kPitch + Plan::kPartials)),
        partial(probability + Plan::kWarpTokens * Plan::kPitch) {}

  template <typename Offer>  // offer(quad, block, score) of eight blocks from `block` - g on
  __device__ void add(const float (&own)[Plan::kQuads][4], Overlap o, Offer&& offer) {
    const int lane = threadIdx.x & 31, g = lane / 4, quad_token = lane % Plan::kQuadTokens;
#pragma unroll
    for (int quad = 0; quad < Plan::kQuads; ++quad)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        probability[(quad * Plan::kQuadTokens + quad_token) * Plan::kPitch + g * 4 + e] = own[quad][e];
    __syncwarp();
    const int width = o.stride + o.reach - 1;
    for (int u = lane;; u += 32) {
      const int token = u % Plan::kWarpTokens, j = block + u / Plan::kWarpTokens;
      const int first = j * o.stride - (o.reach - 1) - start;  // the block's first key, counted from `start`
      if (first >= 32) break;
      float& score = partial[token * Plan::kPartials + j % Plan::kPartials];
      // Begun before (or block 0, which nobody reads): goes on where it stopped, so that equal blocks have equal bits.
      float sum = first >= 0 ? 0 : score;
      for (int i = max(first, 0); i < min(first + width, 32); ++i)
        sum = fmaf(static_cast<float>(min(min(i - first + 1, first + width - i), o.reach)),
                   probability[token * Plan::kPitch + i], sum);
      score = sum;
    }
    __syncwarp();
    start += 32;
    for (; (block + 1) * o.stride <= start; block = min(block + 8, start / o.stride)) {
#pragma unroll
      for (int quad = 0; quad < Plan::kQuads; ++quad) {
        const int j = block + g;
        const float score = partial[(quad * Plan::kQuadTokens + quad_token) * Plan::kPartials + j % Plan::kPartials];
        offer(quad, (j + 1) * o.stride <= start ? j : 0, score);
      }
    }
    __syncwarp();
  }
};

// Eq 9 for weights 1,2,2,2,1: a thread holds all keys of a block but the one before them, its neighbour's last.
template <typename Plan>
struct PaperScores {
  float before[Plan::kQuads] = {};  // of the key before the next 32, in the first four lanes
  int block = 0;

  __device__ explicit PaperScores(float*) {}
  template <typename Offer>
  __device__ void add(const float (&own)[Plan::kQuads][4], Overlap, Offer&& offer) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int quad = 0; quad < Plan::kQuads; ++quad) {
      const float neighbour =
          __shfl_sync(kWarp, own[quad][3], lane + 28);  // lane - 4; the first four lanes: the last key
      const float first = lane < 4 ? before[quad] : neighbour;
      before[quad] = neighbour;
      offer(quad, block + lane / 4, fmaf(2, own[quad][0] + own[quad][1] + own[quad][2], first + own[quad][3]));
    }
    block += 8;
  }
};

}  // namespace nsa::kernels
