// Which of two shapes pooling's forward kernel (pool/pool.cu) has: by the problem alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "nsa/kernels/pool.hpp"

namespace nsa::kernels {

inline constexpr int kPoolThreads = 256, kPoolColumns = 8;  // of a CTA; of a thread

// For so many rows of a batch entry's output of the wider tensor.
[[nodiscard]] inline std::int64_t pool_threads(const Pool& p, int rows) {
  int D = 0;
  for (int i = 0; i < p.count; ++i) D = std::max(D, p.tensors[i].D);
  return static_cast<std::int64_t>(rows) * p.G * (D / kPoolColumns);
}
// Whether the outputs are so few that they are dealt out to CTAs of a warp: not two CTAs of kPoolThreads for each of
// an H100's 132 SMs.
[[nodiscard]] inline bool pools_few(const Pool& p) {
  constexpr std::int64_t kFew = 264 * kPoolThreads;
  return pool_threads(p, p.N) * p.B * p.count < kFew;
}

}  // namespace nsa::kernels
