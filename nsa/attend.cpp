#include "nsa/attend.hpp"

#include <memory>

#include "nsa/nvtx.hpp"

namespace nsa {

at::Tensor attend_in_parts(const Ops& ops, const AttendArgs& x) {
  const auto& g = x.geometry;
  const auto computes = [&](ForcedBranch branch) { return x.only == ForcedBranch::none || x.only == branch; };
  const auto show = [&](std::string_view stage, const at::Tensor& value) {
    if (x.observe) x.observe(stage, value);
  };
  at::Tensor cmp, sel, win;
  std::optional<at::Tensor> stats;  // of the compressed branch: the selection needs the same
  if (computes(ForcedBranch::cmp)) {
    const NvtxRange range(x.nvtx, "attend_compressed");
    const Attended attended = ops.attend_compressed({x.q, x.kv, g, x.cu_seqlens});
    if (attended.stats.defined()) stats = attended.stats.detach();
    cmp = attended.o;
    show("cmp.o", cmp);
  }
  if (computes(ForcedBranch::sel)) {
    at::Tensor blocks;
    {
      const NvtxRange range(x.nvtx, "select");
      blocks = x.blocks ? *x.blocks : ops.select({x.q.detach(), x.kv.k.detach(), g, x.cu_seqlens, stats});
      show("blocks", blocks);
    }
    const NvtxRange range(x.nvtx, "attend_selected");
    sel = ops.attend_selected({x.q, x.k_sel, x.v_sel, blocks, g, x.cu_seqlens}).o;
    show("sel.o", sel);
  }
  if (computes(ForcedBranch::win)) {
    const NvtxRange range(x.nvtx, "attend_window");
    win = ops.attend_window({x.q, x.k_win, x.v_win, g, x.cu_seqlens}).o;
    show("win.o", win);
  }
  switch (x.only) {
    case ForcedBranch::cmp:
      return cmp;
    case ForcedBranch::sel:
      return sel;
    case ForcedBranch::win:
      return win;
    case ForcedBranch::none:
      break;
  }
  const NvtxRange range(x.nvtx, "combine");
  return ops.combine({x.gates, cmp, sel, win});
}

Ops::Ops(OpFunction<Compressed, CompressArgs> pool, OpFunction<Attended, AttendCompressedArgs> cmp,
         OpFunction<at::Tensor, SelectArgs> choose, OpFunction<Attended, AttendSelectedArgs> sel,
         OpFunction<Attended, AttendWindowArgs> win, OpFunction<at::Tensor, CombineArgs> sum)
    : compress(std::move(pool)),
      attend_compressed(std::move(cmp)),
      select(std::move(choose)),
      attend_selected(std::move(sel)),
      attend_window(std::move(win)),
      combine(std::move(sum)) {
  attend_by_parts();
}

// The parts as they are now: a function replaced later calls this again.
void Ops::attend_by_parts() {
  auto parts = std::make_shared<Ops>(*this);
  parts->attend = {};  // asked by nobody
  attend = [parts = std::shared_ptr<const Ops>(std::move(parts))](const AttendArgs& args) {
    check(args);  // all of it before the first part computes
    return attend_in_parts(*parts, args);
  };
  way = AttendWay::in_parts;
}

Ops Ops::in_one(OpFunction<at::Tensor, AttendArgs> function) const {
  Ops table = *this;
  table.attend = std::move(function);
  table.way = AttendWay::in_one;
  return table;
}

Ops Ops::in_parts() const {
  Ops table = *this;
  table.attend_by_parts();
  return table;
}

}  // namespace nsa
