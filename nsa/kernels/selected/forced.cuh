// The blocks that a selection always takes, before it looks at scores: the document's first one, the token's own and
// the one before. Neighbouring tokens share them, so that a kernel may treat them apart.
#pragma once

#include <cstdint>

namespace nsa::kernels {

// Of a token, by its position in its document, and a block that does not start after it, by its number there.
__device__ inline bool is_forced(int number, int position, int l_sel) {
  return number == 0 || (number + std::int64_t{2}) * l_sel > position;
}

}  // namespace nsa::kernels
