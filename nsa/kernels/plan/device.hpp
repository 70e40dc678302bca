// What a plan must know of the GPU.
#pragma once

#include "nsa/kernels/plan/limits.hpp"

namespace nsa::kernels {

struct Device {
  bool hopper = false;  // has wgmma and TMA: compute capability 9.0, and kernels that were compiled for sm_90a
  int sm_count = 1;
  Limits limits = {};
};
// The current one. Throws LaunchError when the runtime does not answer.
[[nodiscard]] Device current_device();

}  // namespace nsa::kernels
