// Attention part by part: the one place that knows the order of the branches. A backend with a node of autograd of its
// own for all of them (cuda) must give what this gives; every other table's `attend` is this.
#pragma once

#include "nsa/ops.hpp"

namespace nsa {

// attend_compressed, select, attend_selected, attend_window, combine of the table: [B,S,Hq,Dv]. With a branch that runs
// alone (AttendArgs::only) the other two are not computed; `sel` needs args.kv for its choice. Each part checks its own
// arguments; a table's `attend` checks all of them before (a decoding step attends over its caches instead).
[[nodiscard]] at::Tensor attend_in_parts(const Ops& ops, const AttendArgs& args);

}  // namespace nsa
