// For tests of routes: a call on a GPU, without one.
#pragma once

#include <tuple>
#include <utility>

#include "nsa/route.hpp"

namespace nsa::fixtures {

// The first training runs' call, which every backend of a GPU of that compute capability serves.
inline Call gpu_call(std::pair<int, int> capability = {9, 0}) {
  Call call;
  call.S = 2048;
  call.Hq = 12;
  call.G = 2;
  call.precision = Precision::bf16;
  call.cuda = true;
  std::tie(call.cuda_major, call.cuda_minor) = capability;
  return call;
}

}  // namespace nsa::fixtures
