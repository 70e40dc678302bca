// The choice of blocks for Hopper's own instructions (sm_90a): the contract is select_blocks' (select.hpp).
#pragma once

#include "nsa/kernels/select.hpp"

namespace nsa::kernels {

// Whether this problem can be given to select_blocks_hopper on the current device: Device::hopper
// (plan/device.hpp), the paper's proportions (l = 2d, l' = 4d), Dk 64, 128 or 192, any compressed keys, none of their
// dimensions expanded (a stride of 0), S*B*G below 2^31. Not the number of tokens: what comes later would change who
// chooses for a token.
[[nodiscard]] bool select_blocks_hopper_supports(const Select& p);
// Throws LaunchError when the problem is not supported.
void select_blocks_hopper(const Select& p, cudaStream_t stream);

}  // namespace nsa::kernels
