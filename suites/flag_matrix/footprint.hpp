// Which way did an attention take? Each way of the table (suites/ways.hpp), called by its name, leaves its own list of
// ATen operations; what the product executed is compared with these lists. They are measured in the process that
// compares, so they follow the torch version, the device and the shapes by themselves.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/ops.hpp"
#include "nsa/route.hpp"
#include "suites/probes/op_trace.hpp"

namespace suites::flag_footprint {

using probes::OpCounts;

struct Footprint {
  std::string way;  // as name_of() has it
  OpCounts ops;
};
// How this suite calls what computes an attention: "sdpa", "cuda", "flash"; where the function has several ways inside
// a backend, "masked", "packed", "packed_safe" of attend_selected, "flash_dense", "flash_varlen" of attend_window.
[[nodiscard]] std::string name_of(std::string_view op, const nsa::Choice& choice);

// Operations that `wanted` holds more often than `ran`.
[[nodiscard]] OpCounts missing(const OpCounts& wanted, const OpCounts& ran);
// The ways whose operations all (or nearly all) ran, with the fewest others beside them; several when they cannot be
// told apart. Extra operations (a wrapper, a check) do not hide a way, missing ones do.
[[nodiscard]] std::vector<std::string> closest(const OpCounts& ran, const std::vector<Footprint>& all);

// Inputs of the three attentions as the model made them.
struct Inputs {
  nsa::AttendCompressedArgs compressed;
  nsa::AttendSelectedArgs selected;
  nsa::AttendWindowArgs window;
};
// By op ("attend_compressed", ...): every way that can serve these inputs on this device and in this gradient mode. One
// that runs other operations where each input lies by itself (contiguous) than where they are slices of one product
// stands twice, since flags decide how inputs lie too (NSA_FUSED_PROJECT).
[[nodiscard]] std::map<std::string, std::vector<Footprint>> demonstrate(const Inputs& inputs);

}  // namespace suites::flag_footprint
