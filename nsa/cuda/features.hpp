// The feature table of our own kernels: which calls backend `cuda` serves. Pure; nothing is launched to find out.
#pragma once

#include <string>

#include "nsa/route.hpp"

namespace nsa {

// While true nobody is routed to our own kernels, whatever NSA_USE_CUDA says, and the suites leave them out: they run
// only for who calls nsa::cuda by its name (its tests, nsa-bench). To be false once those tests and the suites' ways
// `cuda` have passed on a GPU.
inline constexpr bool kKernelsOnTrial = true;
inline constexpr const char* kOnTrial = "our own kernels are on trial: not all of their tests have passed on a GPU yet";

// "" when the kernels serve the call, else the reason: what was asked and what is served. Flags play no part.
[[nodiscard]] std::string cuda_refusal(const Call& call, Op op);

}  // namespace nsa
