#include "nsa/sdpa/sdpa.hpp"

#include <ATen/ATen.h>

namespace nsa::sdpa {

at::Tensor combine(const CombineArgs& args) {
  check(args);
  const auto type = args.o_cmp.scalar_type();
  const std::int64_t G = args.gates.size(2), h = args.o_cmp.size(2) / G;
  const auto gates = args.gates.to(accumulation_type(type)).unsqueeze(3);  // [B,S,G,1,3]
  const auto term = [&](const at::Tensor& o, std::int64_t branch) {
    return o.unflatten(2, {G, h}) * gates.narrow(4, branch, 1);
  };
  return (term(args.o_cmp, 0) + term(args.o_sel, 1) + term(args.o_win, 2)).flatten(2, 3).to(type);
}

Ops ops(Selection how) {
  return {compress,      attend_compressed,
          select,        [how](const AttendSelectedArgs& args) { return attend_selected(args, how); },
          attend_window, combine};
}

}  // namespace nsa::sdpa
