// The choice of blocks for Hopper's own instructions (sm_90a): the contract is select_blocks' (select/params.hpp).
#pragma once

#include "nsa/kernels/select/params.hpp"

namespace nsa::kernels {

// Whether this problem can be given to select_blocks_hopper on the current device: hopper::is_here() (hopper.hpp), the
// paper's proportions (l = 2d, l' = 4d), Dk 64, 128 or 192, no dimension of the keys expanded (a stride of 0). False
// also where it would gain nothing: fewer tiles of tokens than multiprocessors.
[[nodiscard]] bool select_blocks_hopper_supports(const Select& p);
// Throws LaunchError when the problem is not supported.
void select_blocks_hopper(const Select& p, cudaStream_t stream);

}  // namespace nsa::kernels
