// The copy engine's description of a [B, N, G, D] tensor of keys or values.
#pragma once

#include <cuda.h>

#include "nsa/kernels/params.hpp"

namespace nsa::kernels::hopper {

// Five dimensions, fastest first: 64 columns, token, slab of 64 columns, head, batch. A box is `tile` rows of one head
// with all D columns, and arrives as D/64 slabs [tile][64] with the 128-byte swizzle. Rows from N on arrive as zeros.
// Throws LaunchError when the driver refuses.
CUtensorMap tensor_map(const Rows& rows, Storage storage, int B, int N, int G, int D, int tile);

}  // namespace nsa::kernels::hopper
