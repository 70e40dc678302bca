// Which way did an attention take? Each way, called by its name, leaves its own list of ATen operations; what the
// product executed is compared with these lists. They are measured in the process that compares, so they follow the
// torch version, the device and the shapes by themselves.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nsa/ops.hpp"
#include "suites/probes/op_trace.hpp"

namespace suites::flag_ways {

using probes::OpCounts;

struct Way {
  std::string name;  // "sdpa", "masked", "flash_dense", ...
  OpCounts ops;
};

// Operations that `wanted` holds more often than `ran`.
[[nodiscard]] OpCounts missing(const OpCounts& wanted, const OpCounts& ran);
// The ways whose operations all (or nearly all) ran, with the fewest others beside them; several when they cannot be
// told apart. Extra operations (a wrapper, a check) do not hide a way, missing ones do.
[[nodiscard]] std::vector<std::string> closest(const OpCounts& ran, const std::vector<Way>& ways);

// Inputs of the three attentions as the model made them.
struct Inputs {
  nsa::AttendCompressedArgs compressed;
  nsa::AttendSelectedArgs selected;
  nsa::AttendWindowArgs window;
};
// By op ("attend_compressed", ...): every way that can serve these inputs on this device and in this gradient mode. One
// that runs other operations where each input lies by itself (contiguous) than where they are slices of one product
// stands twice, since flags decide how inputs lie too (NSA_FUSED_PROJECT).
[[nodiscard]] std::map<std::string, std::vector<Way>> demonstrate(const Inputs& inputs);

}  // namespace suites::flag_ways
