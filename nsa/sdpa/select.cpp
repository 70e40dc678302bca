// Importance and the choice of blocks, a chunk of queries at a time, in fp32 (fp64 for fp64).
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nsa/sdpa/rows.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa::sdpa {

namespace {

constexpr std::int64_t kSelectChunk = 1024;

// Probability of each block, summed over the heads of the group: p [B,G,T,N_c] for queries q
// [B,T,Hq,Dk] at tokens t [T].
at::Tensor group_probability(const at::Tensor& q, const at::Tensor& k_cmp, const at::Tensor& t, const Geometry& g) {
  const std::int64_t T = q.size(1), G = k_cmp.size(2), N_c = k_cmp.size(1);
  const auto wide = accumulation_type(q.scalar_type());
  const auto scores = at::matmul(heads_to_rows(q, G).to(wide), k_cmp.to(wide).permute({0, 2, 3, 1}))
                          .div_(std::sqrt(static_cast<double>(q.size(3))))
                          .view({q.size(0), G, T, q.size(2) / G, N_c});
  // Number of blocks complete at t: floor((t+1-l)/d) + 1, which is not positive before token l-1.
  const auto complete = at::floor_divide(t + (1 - g.l), g.d) + 1;
  const auto hidden = positions(0, N_c, q).unsqueeze(0).ge(complete.unsqueeze(1)).unsqueeze(1);  // [T,1,N_c]
  // A row without any visible block becomes NaN in the softmax and 0 after it.
  const auto p =
      at::softmax(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1).masked_fill(hidden, 0.0);
  // Head after head: at::sum groups the heads by the place of the block, and blocks that tie would
  // part in the last bit.
  auto sum = p.select(3, 0).clone();
  for (std::int64_t head = 1; head < p.size(3); ++head) sum.add_(p.select(3, head));
  return sum;
}

// Eq 9 as a correlation with stride l'/d. A stretch of d tokens lies in l/d compressed blocks and a selection block has
// l'/d such stretches: the weights are two runs of ones convolved, a trapezoid (1,2,2,2,1 for 32/16/64), and the first
// compressed block that reaches into selection block j is j*l'/d - (l/d - 1). [B,G,T,N_c] -> [B,G,T,N_sel]
at::Tensor correlate(const at::Tensor& p, const Geometry& g, std::int64_t N_sel) {
  const std::int64_t reach = g.l / g.d, stride = g.l_sel / g.d, width = stride + reach - 1;
  const auto place = positions(0, width, p);
  const auto weights = at::minimum(place + 1, width - place).clamp_max(std::min(reach, stride)).to(p.scalar_type());
  const std::int64_t right = (N_sel - 1) * stride + width - (reach - 1) - p.size(3);
  return (at::constant_pad_nd(p, {reach - 1, right}).unfold(3, width, stride) * weights).sum(-1);
}

// Eq 11 by one sort of integers: the bits of a score that is not negative order as the score does.
// score [B,G,T,N_sel] at tokens t [T] -> blocks [B,T,G,n] int32.
at::Tensor top_blocks(const at::Tensor& score, const at::Tensor& t, const Geometry& g) {
  const std::int64_t N_sel = score.size(3), taken = std::min(g.n_sel, N_sel);
  const bool wide = score.scalar_type() == at::kDouble;
  const auto j = positions(0, N_sel, score);
  const auto current = at::floor_divide(t, g.l_sel).unsqueeze(1);  // [T,1]
  const auto forced = j.eq(0).logical_or(j.eq(current)).logical_or(j.eq(current - 1));
  auto key = score.contiguous().view(wide ? at::kLong : at::kInt).clamp_min(0);
  if (wide)
    key = key.masked_fill(forced, std::numeric_limits<std::int64_t>::max());
  else
    key = key.masked_fill(forced, std::numeric_limits<std::int32_t>::max());
  key = key.masked_fill(j.gt(current), -1);
  const auto [sorted, number] =
      at::sort(key, /*stable=*/true, /*dim=*/-1, /*descending=*/true);  // stable: ties stay low first
  auto blocks = number.narrow(-1, 0, taken).masked_fill(sorted.narrow(-1, 0, taken).lt(0), N_sel);
  blocks = std::get<0>(at::sort(blocks, -1));
  blocks = at::constant_pad_nd(blocks.masked_fill(blocks.eq(N_sel), -1), {0, g.n_sel - taken}, -1);
  return blocks.to(at::kInt).transpose(1, 2);
}

}  // namespace

at::Tensor select(const SelectArgs& args) {
  check(args);
  const at::NoGradGuard no_grad;
  const auto& g = args.geometry;
  std::int64_t first = 0;
  return per_document(args.cu_seqlens, args.q.size(1),
                      [&](std::int64_t begin, std::int64_t S) {
                        const std::int64_t N_c = compressed_blocks(g, S), N_sel = selection_blocks(g, S);
                        const auto q = args.q.narrow(1, begin, S), k = args.k_cmp.narrow(1, first, N_c);
                        std::vector<at::Tensor> parts;
                        for (std::int64_t i = 0; i < S; i += kSelectChunk) {
                          const std::int64_t count = std::min(kSelectChunk, S - i);
                          const auto t = positions(i, count, q);
                          parts.push_back(
                              top_blocks(correlate(group_probability(q.narrow(1, i, count), k, t, g), g, N_sel), t, g));
                        }
                        first += N_c;
                        return at::cat(parts, 1);
                      })
      .contiguous();
}

}  // namespace nsa::sdpa
