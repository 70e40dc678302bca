// The choice of blocks for Hopper's own instructions (sm_90a): the contract is select_blocks' (select.hpp).
#pragma once

#include "nsa/kernels/plan/select_plan.hpp"

namespace nsa::kernels {

// `plan` is one of SelectVariant::wgmma: no other problem is to be given to it.
void select_blocks_hopper(const Select& p, const SelectPlan& plan, cudaStream_t stream);

}  // namespace nsa::kernels
