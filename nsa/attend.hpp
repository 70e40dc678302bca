// The three branches and their gated sum (Eq 5) by a table of ops: what attention is between its projections.
#pragma once

#include "nsa/ops.hpp"

namespace nsa {

// Not null where one call computes what attend_compressed, select, attend_selected, attend_window and combine of the
// table would: where these are backend cuda's own. A table whose functions somebody has put others around (to observe,
// to check, to time, to break) has none, so that nobody misses being asked.
using AttendInOne = at::Tensor (*)(const AttendArgs&);
[[nodiscard]] AttendInOne attend_in_one(const Ops& ops);

// [B,S,Hq,Dv], in one where the table can, else function by function: forward the same to the bit, gradients within
// rounding.
[[nodiscard]] at::Tensor attend(const Ops& ops, const AttendArgs& args);

}  // namespace nsa
