#include "nsa/flash/flash.hpp"

#include <ATen/ATen.h>

#include "nsa/call.hpp"
#include "nsa/flash/attention.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa::flash {

Attended attend_window(const AttendWindowArgs& args, Entry entry) {
  check(args);
  const bool grad = args.q.requires_grad() || args.k.requires_grad() || args.v.requires_grad();
  require(call_of(args.q, {args.v.size(2), args.v.size(3), args.geometry, args.cu_seqlens.has_value(), grad}),
          Op::attend_window);
  if (entry == Entry::dense && !args.cu_seqlens) return causal_dense(args.q, args.k, args.v, args.geometry.w);

  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < args.q.size(0); ++b)
    for (const auto& [begin, end] : documents(args.cu_seqlens, args.q.size(1)))
      if (begin < end) lengths.push_back(end - begin);
  return causal_varlen(args.q, args.k, args.v, lengths, args.geometry.w);
}

Ops ops(Entry entry) {
  Ops table = sdpa::ops();
  table.replace(&Ops::attend_compressed, attend_compressed);
  table.replace(&Ops::attend_window, [entry](const AttendWindowArgs& args) { return attend_window(args, entry); });
  return table;
}

}  // namespace nsa::flash
