// Compression (Eq 7), importance (Eq 8 to 10) and the choice of blocks (Eq 11).
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "nsa/reference/reference.hpp"

namespace nsa::reference {

namespace {

// [B,S,G,D] -> [B,N_c,G,l,D], written out block by block.
at::Tensor blocks_of(const at::Tensor& x, const Geometry& g) {
  std::vector<at::Tensor> blocks;
  for (std::int64_t i = 0; i < compressed_blocks(g, x.size(1)); ++i) blocks.push_back(x.narrow(1, i * g.d, g.l));
  if (blocks.empty()) return x.narrow(1, 0, 0).unsqueeze(3).expand({-1, -1, -1, g.l, -1});
  return at::stack(blocks, 1).transpose(2, 3);
}

at::Tensor phi(const at::Tensor& blocks, const std::optional<PhiWeights>& weights) {
  if (!weights) return blocks.mean(3);
  const auto wide = [&](const at::Tensor& t) { return t.to(blocks.scalar_type()); };
  const auto hidden = at::matmul((blocks + wide(weights->position)).flatten(3), wide(weights->fc1).t());
  return at::matmul(hidden * at::sigmoid(hidden), wide(weights->fc2).t());
}

}  // namespace

Compressed compress(const CompressArgs& args) {
  check(args);
  const auto type = args.k.scalar_type();
  std::vector<at::Tensor> k, v;
  for (const auto& [begin, end] : documents(args.cu_seqlens, args.k.size(1))) {
    const auto own = [&, first = begin, S = end - begin](const at::Tensor& x) {
      return blocks_of(x.narrow(1, first, S).to(accumulation_type(type)), args.geometry);
    };
    k.push_back(phi(own(args.k), args.phi_k).to(type));
    v.push_back(phi(own(args.v), args.phi_v).to(type));
  }
  return {at::cat(k, 1), at::cat(v, 1)};
}

at::Tensor overlap_weights(const Geometry& g, std::int64_t N_c, std::int64_t N_sel) {
  auto weights = at::zeros({N_c, N_sel}, at::kDouble);
  auto at_place = weights.accessor<double, 2>();
  for (std::int64_t i = 0; i < N_c; ++i)
    for (std::int64_t j = 0; j < N_sel; ++j) {
      const std::int64_t begin = std::max(i * g.d, j * g.l_sel), end = std::min(i * g.d + g.l, (j + 1) * g.l_sel);
      at_place[i][j] = static_cast<double>(std::max<std::int64_t>(0, end - begin)) / static_cast<double>(g.d);
    }
  return weights;
}

at::Tensor importance(const at::Tensor& p_cmp, const Geometry& g, std::int64_t G, std::int64_t S) {
  // Note [Equal blocks have equal bits]
  // Ties go to the lower number only where equal scores are the same bits. A library's sum or matrix product groups its
  // addends by the place of the result (a SIMD lane, a tile's edge), and equal blocks then differ in the last bit. So
  // both sums are written out, every block's addends in the same order.
  const std::int64_t N_c = p_cmp.size(3), N_sel = selection_blocks(g, S);
  const auto heads = p_cmp.unflatten(1, {G, p_cmp.size(1) / G}).unbind(2);
  auto p = heads.front();  // [B,G,S,N_c]
  for (std::size_t i = 1; i < heads.size(); ++i) p = p + heads[i];

  const auto weights = overlap_weights(g, N_c, N_sel);
  const auto weight = weights.accessor<double, 2>();
  std::vector<at::Tensor> scores;  // [B,G,S] each
  for (std::int64_t j = 0; j < N_sel; ++j) {
    auto score = at::zeros(p.sizes().slice(0, 3), p.options());
    for (std::int64_t i = 0; i < N_c; ++i)
      if (weight[i][j] > 0) score = score + weight[i][j] * p.select(3, i);
    scores.push_back(score);
  }
  return at::stack(scores, 3).transpose(1, 2);
}

at::Tensor choose(const at::Tensor& importance, const Geometry& g) {
  const std::int64_t S = importance.size(1), N_sel = importance.size(3);
  const auto options = at::TensorOptions().dtype(at::kLong).device(importance.device());
  const auto j = at::arange(N_sel, options).unsqueeze(0);
  const auto current = at::floor_divide(at::arange(S, options), g.l_sel).unsqueeze(1);
  // 2: forced (first, current, previous), 1: may be chosen, 0: starts after the token. [S,1,N_sel]
  const auto rank = at::where(j > current, 0, at::where((j == 0).logical_or(j >= current - 1), 2, 1)).unsqueeze(1);

  // Lexicographic: by rank, then by score, then the lower number, by two stable sorts from the last key to the first.
  const auto by_score = at::argsort(importance, /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  const auto rank_by_score = rank.expand_as(importance).gather(-1, by_score);
  const auto by_rank = at::argsort(rank_by_score, /*stable=*/true, -1, true);
  const auto order = by_score.gather(-1, by_rank);
  const auto order_rank = rank_by_score.gather(-1, by_rank);

  const std::int64_t taken = std::min(g.n_sel, N_sel);
  const auto chosen = at::where(order_rank.narrow(-1, 0, taken) > 0, order.narrow(-1, 0, taken), N_sel);
  const auto ascending = std::get<0>(at::sort(chosen, -1));
  const auto padded = at::constant_pad_nd(ascending, {0, g.n_sel - taken}, N_sel);
  return at::where(padded == N_sel, -1, padded).to(at::kInt);
}

at::Tensor select(const SelectArgs& args) {
  check(args);
  const at::NoGradGuard no_grad;
  const auto& g = args.geometry;
  std::vector<at::Tensor> rows;
  std::int64_t first = 0;
  for (const auto& [begin, end] : documents(args.cu_seqlens, args.q.size(1))) {
    const std::int64_t S = end - begin, N_c = compressed_blocks(g, S);
    if (S == 0) continue;
    const auto p = compressed_probabilities(args.q.narrow(1, begin, S), args.k_cmp.narrow(1, first, N_c), g);
    rows.push_back(choose(importance(p, g, args.k_cmp.size(2), S), g));
    first += N_c;
  }
  return at::cat(rows, 1);
}

}  // namespace nsa::reference
