// The window as a band: chunks of queries against the keys that any of them may see.
#include <ATen/ATen.h>

#include <algorithm>

#include "nsa/sdpa/rows.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa::sdpa {

namespace {

// A chunk of at least w queries sees fewer than twice as many keys, so at most half of the scores are masked away;
// below this many rows a kernel's launch costs more than what the band saves.
constexpr std::int64_t kSmallestChunk = 256;

// q, k, v of one document.
at::Tensor attend_band(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t w) {
  const std::int64_t S = q.size(1), G = k.size(2), h = q.size(2) / G;
  const auto rows = heads_to_rows(q, G);
  const Keys keys = keys_for_rows(k, v);
  const std::int64_t chunk = std::max(w, kSmallestChunk);
  std::vector<at::Tensor> parts;
  for (std::int64_t begin = 0; begin < S; begin += chunk) {
    const std::int64_t end = std::min(begin + chunk, S), first = std::max<std::int64_t>(0, begin - w + 1);
    const auto t = positions(begin, end - begin, q).unsqueeze(1), j = positions(first, end - first, q).unsqueeze(0);
    const auto distance = t - j;
    const auto visible = distance.ge(0).logical_and(distance.lt(w));
    parts.push_back(
        attend_rows(rows.narrow(2, begin * h, (end - begin) * h), keys.narrow(first, end - first), visible, h));
  }
  return rows_to_heads(parts.size() == 1 ? parts.front() : at::cat(parts, 2), S);
}

}  // namespace

Attended attend_window(const AttendWindowArgs& args) {
  check(args);
  const auto o = per_document(args.cu_seqlens, args.q.size(1), [&](std::int64_t begin, std::int64_t S) {
    return attend_band(args.q.narrow(1, begin, S), args.k.narrow(1, begin, S), args.v.narrow(1, begin, S),
                       args.geometry.w);
  });
  return {o, {}};
}

}  // namespace nsa::sdpa
