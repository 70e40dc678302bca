#include "nsa/reference/reference.hpp"

#include <ATen/ATen.h>

namespace nsa::reference {

at::Tensor combine(const CombineArgs& args) {
  check(args);
  const auto type = args.o_cmp.scalar_type();
  const std::int64_t h = args.o_cmp.size(2) / args.gates.size(2);
  const auto per_head = args.gates.to(accumulation_type(type)).repeat_interleave(h, 2);  // [B,S,Hq,3]
  const auto branches = at::stack({args.o_cmp, args.o_sel, args.o_win}, -1);             // [B,S,Hq,Dv,3]
  return (branches * per_head.unsqueeze(-2)).sum(-1).to(type);
}

Ops ops() { return {compress, attend_compressed, select, attend_selected, attend_window, combine}; }

Stages stages(const StagesArgs& args) {
  const auto& g = args.geometry;
  const std::int64_t S = args.q.size(1), G = args.k_sel.size(2);
  Stages result;
  result.compressed =
      compress({.k = args.k_cmp, .v = args.v_cmp, .geometry = g, .cu_seqlens = {}, .phi_k = {}, .phi_v = {}});
  result.p_cmp = compressed_probabilities(args.q, result.compressed.k, g);
  result.importance = importance(result.p_cmp, g, G, S);
  result.blocks = choose(result.importance.detach(), g);
  result.cmp = attend_compressed({args.q, result.compressed, g, {}});
  result.sel = attend_selected({args.q, args.k_sel, args.v_sel, result.blocks, g, {}});
  result.win = attend_window({args.q, args.k_win, args.v_win, g, {}});
  result.o = combine({args.gates, result.cmp.o, result.sel.o, result.win.o});
  return result;
}

}  // namespace nsa::reference
