#include "nsa/attend.hpp"

#include "nsa/cuda/cuda.hpp"

namespace nsa {

namespace {

template <typename Result, typename Args>
bool is(const std::function<Result(const Args&)>& op, Result (*own)(const Args&)) {
  const auto* plain = op.template target<Result (*)(const Args&)>();
  return plain && *plain == own;
}

}  // namespace

AttendInOne attend_in_one(const Ops& ops) {
  const bool all = is(ops.attend_compressed, cuda::attend_compressed) && is(ops.select, cuda::select) &&
                   is(ops.attend_selected, cuda::attend_selected) && is(ops.attend_window, cuda::attend_window) &&
                   is(ops.combine, cuda::combine);
  return all ? cuda::attend_all : nullptr;
}

at::Tensor attend(const Ops& ops, const AttendArgs& x) {
  if (const AttendInOne in_one = attend_in_one(ops)) return in_one(x);
  const auto& g = x.geometry;
  const Attended cmp = ops.attend_compressed({x.q, x.kv, g, x.cu_seqlens});
  const auto stats = cmp.stats.defined() ? std::optional(cmp.stats.detach()) : std::nullopt;
  const auto blocks = x.blocks ? *x.blocks : ops.select({x.q.detach(), x.kv.k.detach(), g, x.cu_seqlens, stats});
  const Attended sel = ops.attend_selected({x.q, x.k_sel, x.v_sel, blocks, g, x.cu_seqlens});
  const Attended win = ops.attend_window({x.q, x.k_win, x.v_win, g, x.cu_seqlens});
  return ops.combine({x.gates, cmp.o, sel.o, win.o});
}

}  // namespace nsa
