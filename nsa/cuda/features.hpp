// The feature table of our own kernels: which calls backend `cuda` serves. Pure; nothing is launched to find out.
#pragma once

#include <string>

#include "nsa/route.hpp"

namespace nsa {

// "" when the kernels serve the call, else the reason: what was asked and what is served. Flags play no part.
[[nodiscard]] std::string cuda_refusal(const Call& call, Op op);

// What of it the machine alone decides: the device, and what this build was compiled for.
[[nodiscard]] std::string machine_refusal(const Call& call);

// The same of a layer's projections with RoPE and gate (project.hpp).
[[nodiscard]] std::string project_refusal(const Call& call);

}  // namespace nsa
