// TMA's description of a [B, N, G, D] tensor of keys or values.
#pragma once

#include <cuda.h>

#include "nsa/kernels/params.hpp"

namespace nsa::kernels::hopper {

// Five dimensions, fastest first: 64 columns, token, slab of 64 columns, head, batch. A box is `tile` rows of one head
// with all D columns, and arrives as D/64 slabs [tile][64] with the 128-byte swizzle. Rows from N on arrive as zeros.
// Throws LaunchError when the driver refuses.
CUtensorMap tensor_map(const Rows& rows, Storage storage, int B, int N, int G, int D, int tile);

// Whether a dimension of the same tensor is expanded, with a stride of 0, which the driver refuses.
inline bool expanded(const Rows& rows, int B, int N, int G) {
  return (N > 1 && rows.token == 0) || (G > 1 && rows.head == 0) || (B > 1 && rows.batch == 0);
}

// Of a [B, S, H, D] tensor of rows (token, head): 64 columns, head, token, slab of 64 columns, batch. A box is one slab
// of `tokens` tokens with `heads` heads each, and arrives as [tokens * heads][64] with the 128-byte swizzle. Tokens
// from S on arrive as zeros.
CUtensorMap rows_map(const Rows& rows, Storage storage, int B, int S, int H, int D, int heads, int tokens);

}  // namespace nsa::kernels::hopper
