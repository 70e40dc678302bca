// The running softmax of one tile after another, on the registers of m16n8k16's result: a thread holds two rows (g,
// g+8) of every 16, and of each row the columns 2i, 2i+1 of every eight; the four threads of a quad share a row.
#pragma once

#include <cmath>

#include "nsa/kernels/device/mma.cuh"

namespace nsa::kernels {

inline constexpr float kLog2E = 1.4426950408889634f;  // log2(e): powers are of two

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// What scores are counted from: the row's maximum, so that the largest weight is exactly 1 whatever the scale of the
// logits. (factor * score - factor * maximum, the product rounded, misses 1 by 2^-25 of the exponent: at logits of 1e4
// more than bf16 resolves.) Where nothing is seen, 0: (-inf) - (-inf) is never formed.
__device__ inline float origin_of(float maximum) { return maximum == -INFINITY ? 0.f : maximum; }

// Note [Rounded origins]
// 2^(factor * score - factor * origin), the second product rounded, costs an instruction a score less than 2^(factor *
// (score - origin)). All weights of a row are then too large by one factor, which their sum has too: at logits of 1e4
// it is 2^-11 off 1. But bf16 still rounds the largest weight to 1, so that a row with one weight alone would be off by
// it: the sum is taken back. fp16 resolves the factor, and takes the other way. So do rows whose origin is beyond 2^14,
// where the factor grows, beyond 2^31 out of the range of powers: a warp that has one subtracts it first.
template <typename T>
inline constexpr bool kRoundsOrigin = false;
template <>
inline constexpr bool kRoundsOrigin<bf16> = true;
__device__ inline bool is_far(float scaled) { return !(fabsf(scaled) < 16384.f); }
// What rounding took off factor * maximum where it counts.
__device__ inline float rounded_off(float maximum, float factor) {
  const float scaled = multiply_rounded(maximum, factor);
  return is_far(scaled) ? 0.f : fmaf(maximum, factor, -scaled);
}

// AttentionForward::stats of a row from the maximum of its plain scores and its sum of 2^(factor * (score - maximum)).
// factor * maximum is rounded; what that adds to every exponent goes into the sum.
__device__ inline float2 stored_statistics(float maximum, float total, float factor) {
  const float scaled = maximum * factor;
  const float rest = maximum == -INFINITY ? 0.f : fmaf(maximum, factor, -scaled);
  return make_float2(scaled, total * exp2_fast(rest));
}

// Note [Late normaliser]
// dS = P (dP - delta), and P a row's weights times its normaliser. Where rows are the result's rows too (dQ), the
// normaliser goes into the result: an instruction a score less. Before it a row's largest weight is 1, as its origin is
// the maximum: bf16 holds weight times (dP - delta) as well as dS. fp16 may not, whose losses are scaled until dO just
// fits, and takes the normaliser into P.
template <typename T>
inline constexpr bool kNormalisesLate = kRoundsOrigin<T>;

// A result times what its rows' earlier weights are to be multiplied with, which for most tiles of keys is 1 in all of
// a warp's rows. By whole warps.
template <int N>
__device__ inline void rescale_rows(float (&c)[N][4], const float (&by)[2]) {
  if (!__any_sync(0xffffffffu, by[0] != 1.f || by[1] != 1.f)) return;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) c[n][i] *= by[i / 2];
}

// Two rows. `maximum` is of the plain scores, `sum` this thread's share of the sum of 2^(factor * (score - maximum)).
struct RunningSoftmax {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};

  // Scores become weights (masked scores are -inf); `rescale[row]` is what earlier results are to be multiplied with.
  // A NaN score stays NaN: fmaxf passes it over, 2^NaN does not.
  template <int N>
  __device__ void update(float (&s)[N][4], float factor, float (&rescale)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float highest = maximum[row];
#pragma unroll
      for (int n = 0; n < N; ++n) highest = fmaxf(highest, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
      highest = quad_max(highest);
      const float origin = origin_of(highest);
      rescale[row] = exp2_fast((maximum[row] - origin) * factor);
      maximum[row] = highest;
      float added = 0;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 2 * row; i < 2 * row + 2; ++i) {
          s[n][i] = exp2_fast((s[n][i] - origin) * factor);
          added += s[n][i];
        }
      sum[row] = sum[row] * rescale[row] + added;
    }
  }
  // The same for weights that are rounded to T, with fewer instructions and shorter chains: for kernels with a warp or
  // two a scheduler, where nothing else hides the latency of a chain. See Note [Rounded origins]; by whole warps. A row
  // that does not count keeps what it has: its scores may be anything, and its weights are not to be used.
  template <typename T, int N>
  __device__ void update_in_chains(float (&s)[N][4], float factor, float (&rescale)[2], const bool (&counts)[2]) {
    float highest[2][2], origin[2];
    float farthest = 0;
#pragma unroll
    for (int row = 0; row < 2; ++row)
#pragma unroll
      for (int i = 0; i < 2; ++i) highest[row][i] = fmaxf(s[0][2 * row + i], s[1][2 * row + i]);
#pragma unroll
    for (int n = 2; n < N; ++n)
#pragma unroll
      for (int row = 0; row < 2; ++row)
#pragma unroll
        for (int i = 0; i < 2; ++i) highest[row][i] = fmaxf(highest[row][i], s[n][2 * row + i]);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float before = maximum[row];
      const float seen = fmaxf(highest[row][0], highest[row][1]);
      const float now = quad_max(fmaxf(counts[row] ? seen : -INFINITY, before));
      origin[row] = origin_of(now);
      if constexpr (kRoundsOrigin<T>) {
        const float scaled = multiply_rounded(origin[row], factor);
        farthest = fmaxf(farthest, fabsf(scaled));
        rescale[row] = exp2_fast(multiply_rounded(before, factor) - scaled);
      } else {
        rescale[row] = exp2_fast((before - origin[row]) * factor);
      }
      highest[row][0] = before;  // for the rows below that are far
      maximum[row] = now;
    }
    if constexpr (kRoundsOrigin<T>) {
      const bool far = __any_sync(0xffffffffu, is_far(farthest));
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float scaled = multiply_rounded(origin[row], factor);
        if (far) {
          const float taken = is_far(scaled) ? origin[row] : 0.f, before = highest[row][0];
#pragma unroll
          for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 2 * row; i < 2 * row + 2; ++i) s[n][i] -= taken;
          rescale[row] = exp2_fast(
              fmaf(before - origin[row], factor, rounded_off(origin[row], factor) - rounded_off(before, factor)));
          origin[row] = is_far(scaled) ? 0.f : scaled;
        } else {
          origin[row] = scaled;
        }
      }
    }
    const float kept[2] = {sum[0] * rescale[0], sum[1] * rescale[1]};
#pragma unroll
    for (int row = 0; row < 2; ++row) sum[row] = kept[row];
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = s[n][i], from = origin[i / 2];
        s[n][i] = exp2_fast(kRoundsOrigin<T> ? fmaf(x, factor, -from) : (x - from) * factor);
        sum[i / 2] += s[n][i];
      }
#pragma unroll
    for (int row = 0; row < 2; ++row) sum[row] = counts[row] ? sum[row] : kept[row];
  }
  template <typename T, int N>
  __device__ void update_in_chains(float (&s)[N][4], float factor, float (&rescale)[2]) {
    update_in_chains<T>(s, factor, rescale, {true, true});
  }
  // The quad's sum after update_in_chains<T>.
  template <typename T>
  __device__ float quad_total(int row, float factor) const {
    const float all = quad_sum(sum[row]);
    if constexpr (!kRoundsOrigin<T>) return all;
    return all * exp2_fast(-rounded_off(origin_of(maximum[row]), factor));
  }
};

// The whole row's sum. A row that sees keys and yet has no weight (every score was -inf) is NaN, as softmax is.
__device__ inline float total_of(float sum, bool sees_keys) { return sum == 0.f && sees_keys ? NAN : sum; }
// What a row's weights are multiplied with; a row that sees nothing becomes 0.
__device__ inline float normaliser(float total) { return total == 0.f ? 0.f : 1.f / total; }

}  // namespace nsa::kernels
