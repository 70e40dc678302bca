#include "nsa/decode/step.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nsa/cuda/decode.hpp"

namespace nsa::decode {

namespace {

at::Tensor count_up(std::int64_t count, const at::Tensor& like) {
  return at::arange(count, at::TensorOptions().dtype(at::kLong).device(like.device()));
}

// The heads of a group as rows that face the group's own keys: [B,1,Hq,D] -> [B,G,h,D].
at::Tensor by_group(const at::Tensor& q, std::int64_t G) { return q.reshape({q.size(0), G, q.size(2) / G, q.size(3)}); }

// q [B,1,Hq,Dk] against k [B,G,keys,Dk] -> [B,G,h,keys], in fp32 at least.
at::Tensor logits(const at::Tensor& q, const at::Tensor& k) {
  const auto wide = accumulation_type(q.scalar_type());
  return at::matmul(by_group(q, k.size(1)).to(wide), k.to(wide).transpose(2, 3)) /
         std::sqrt(static_cast<double>(q.size(3)));
}

// Eq 8 to 10: what each of `candidates` selection blocks scores, [B,G,candidates] in fp32 at least.
at::Tensor scores(const StepSelectArgs& args, std::int64_t candidates) {
  const Geometry& g = args.geometry;
  const auto wide = accumulation_type(args.q.scalar_type());
  const std::int64_t B = args.q.size(0), N_c = args.k_cmp.defined() ? args.k_cmp.size(2) : 0;
  if (N_c == 0) return at::zeros({B, args.G, candidates}, args.q.options().dtype(wide));
  // [B,G,N_c], over the heads of the group. They are laid side by side first: then at::sum adds those of every block in
  // one order, and blocks that tie have the same bits.
  const auto p = at::softmax(logits(args.q, args.k_cmp), -1).transpose(2, 3).contiguous().sum(-1);

  // A compressed block is l/d strides of d tokens and a selection block l'/d of them: what each stride gets, then what
  // the strides of a block have together. That is the overlap in units of d (1,2,2,2,1 for 32/16/64).
  const std::int64_t reach = g.l / g.d, strides = g.l_sel / g.d;
  auto per_stride = at::zeros({B, args.G, candidates * strides}, p.options());
  for (std::int64_t i = 0; i < reach; ++i) per_stride.narrow(2, i, N_c).add_(p);
  return per_stride.unflatten(2, {candidates, strides}).sum(-1);
}

at::Tensor select(const StepSelectArgs& args) {
  const Geometry& g = args.geometry;
  const std::int64_t current = args.t / g.l_sel, candidates = current + 1, taken = std::min(g.n_sel, candidates);
  auto score = scores(args, candidates);
  for (const std::int64_t forced : {std::int64_t{0}, std::max<std::int64_t>(0, current - 1), current})
    score.select(2, forced).fill_(std::numeric_limits<double>::infinity());
  // Stable: among equals the lower number comes first.
  const auto order = std::get<1>(at::sort(score, /*stable=*/true, /*dim=*/-1, /*descending=*/true));
  const auto chosen = std::get<0>(at::sort(order.narrow(2, 0, taken), -1)).to(at::kInt);
  return at::constant_pad_nd(chosen, {0, g.n_sel - taken}, -1).unsqueeze(1);
}

// Written out, not at::scaled_dot_product_attention: that may take cuDNN, which builds a plan for every new number of
// keys, and here every token has another one.
at::Tensor attend(const StepAttendArgs& args) {
  const auto type = args.q.scalar_type(), wide = accumulation_type(type);
  const auto p = at::softmax(logits(args.q, args.k), -1);  // [B,G,h,keys]
  const auto o = at::matmul(p, args.v.to(wide));
  return o.reshape({args.q.size(0), 1, args.q.size(2), args.v.size(3)}).to(type);
}

}  // namespace

at::Tensor gather_blocks(const at::Tensor& rows, const at::Tensor& blocks, std::int64_t t, const Geometry& g) {
  // Every group has the same number of blocks, and the current one is always among them and the last: what lies after
  // token t is the tail.
  const std::int64_t count = std::min(g.n_sel, t / g.l_sel + 1), tokens = (count - 1) * g.l_sel + t % g.l_sel + 1;
  const auto first = blocks.squeeze(1).narrow(2, 0, count).to(at::kLong) * g.l_sel;                   // [B,G,count]
  const auto token = (first.unsqueeze(3) + count_up(g.l_sel, rows)).flatten(2).narrow(2, 0, tokens);  // [B,G,tokens]
  return rows.gather(2, token.unsqueeze(3).expand({-1, -1, -1, rows.size(3)}));
}

StepOps step_ops() {
  return {[](LayerCache& cache, const Projected& tokens) { cache.append(tokens); },
          [](LayerCache& cache, const Compressed& blocks) { cache.append(blocks); },
          StepPart<StepSelectArgs>::own(select), StepPart<StepAttendArgs>::own(attend), cuda::decode};
}

}  // namespace nsa::decode
