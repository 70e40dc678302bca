// A block's score as bits that order as it does.
#pragma once

namespace nsa::kernels {

// Of a score, which is never negative. A NaN counts as larger than every number: it is chosen, so it is seen.
constexpr int kNaNScore = 0x7f800001;
__device__ inline int score_bits(float score) { return min(__float_as_int(score) & 0x7fffffff, kNaNScore); }

}  // namespace nsa::kernels
