// The three attention branches, each as dense scores under an explicit mask.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "nsa/reference/masked_softmax.hpp"
#include "nsa/reference/reference.hpp"

namespace nsa::reference {

MaskedSoftmax masked_softmax(const at::Tensor& scores, const at::Tensor& visible) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto row_sees = visible.any(-1, /*keepdim=*/true);
  // Double where: an empty row first gets harmless scores, so that no NaN arises in either direction, and is cleared
  // afterwards; the outer where then passes it no gradient.
  const auto safe = at::where(row_sees, scores.masked_fill(visible.logical_not(), -kInfinity), 0.0);
  return {at::where(visible, at::softmax(safe, -1), 0.0),
          at::where(row_sees.squeeze(-1), at::logsumexp(safe, -1), -kInfinity)};
}

namespace {

at::Tensor widen(const at::Tensor& t) { return t.to(accumulation_type(t.scalar_type())); }

// [B,S,Hq,D] -> [B,S,G,h,D]
at::Tensor by_group(const at::Tensor& t, std::int64_t G) {
  return t.reshape({t.size(0), t.size(1), G, t.size(2) / G, t.size(3)});
}

// [B,G,h,S,K]
at::Tensor scores(const at::Tensor& q, const at::Tensor& k) {
  return at::einsum("bsghd,bkgd->bghsk", {by_group(widen(q), k.size(2)), widen(k)}) /
         std::sqrt(static_cast<double>(q.size(3)));
}

// The same, of which equal keys get equal bits (Note [Equal blocks have equal bits] in selection.cpp).
at::Tensor scores_key_by_key(const at::Tensor& q, const at::Tensor& k) {
  if (k.size(1) == 0) return scores(q, k);
  const auto rows = by_group(widen(q), k.size(2)).permute({0, 2, 3, 1, 4}).flatten(2, 3);  // [B,G,h*S,D]
  std::vector<at::Tensor> columns;                                                         // [B,G,h*S,1]
  for (const auto& key : widen(k).unbind(1)) columns.push_back(at::matmul(rows, key.unsqueeze(-1)));
  return at::cat(columns, -1).unflatten(2, {-1, q.size(1)}) / std::sqrt(static_cast<double>(q.size(3)));
}

// `visible` [S,K], or [B,G,1,S,K].
Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& visible) {
  const auto rows = masked_softmax(scores(q, k), visible);
  const auto o = at::einsum("bghsk,bkgd->bsghd", {rows.p, widen(v)});
  return {o.flatten(2, 3).to(q.scalar_type()), rows.lse.flatten(1, 2)};
}

at::Tensor positions(std::int64_t count, const at::Tensor& like) {
  return at::arange(count, at::TensorOptions().dtype(at::kLong).device(like.device()));
}

// Block i is visible to token t when it is complete: i*d + l - 1 <= t. [S,N_c]
at::Tensor complete_blocks(const Geometry& g, std::int64_t S, std::int64_t N_c, const at::Tensor& like) {
  const auto last_token = positions(N_c, like) * g.d + (g.l - 1);
  return last_token.unsqueeze(0) <= positions(S, like).unsqueeze(1);
}

// Token j is visible to token t when j <= t and its block is among those of row (b, t, g). [B,G,1,S,S]
at::Tensor chosen_tokens(const at::Tensor& blocks, const Geometry& g) {
  const std::int64_t S = blocks.size(1);
  const auto token = positions(S, blocks);
  const auto block_of_token = at::floor_divide(token, g.l_sel);
  const auto chosen = blocks.unsqueeze(-1).eq(positions(selection_blocks(g, S), blocks)).any(-2);  // [B,S,G,N_sel]
  const auto causal = token.unsqueeze(0) <= token.unsqueeze(1);                                    // [S,S]
  return chosen.index_select(-1, block_of_token).permute({0, 2, 1, 3}).logical_and(causal).unsqueeze(2);
}

// Tokens [t-w+1, t]. [S,S]
at::Tensor window(const Geometry& g, std::int64_t S, const at::Tensor& like) {
  const auto t = positions(S, like).unsqueeze(1), j = positions(S, like).unsqueeze(0);
  return (j <= t).logical_and(j > t - g.w);
}

// Calls `one(begin, length)` for every document and lays the answers end to end.
template <typename One>
Attended per_document(const CuSeqlens& cu_seqlens, std::int64_t S, const One& one) {
  std::vector<at::Tensor> o, lse;
  for (const auto& [begin, end] : documents(cu_seqlens, S)) {
    if (begin == end) continue;
    const Attended part = one(begin, end - begin);
    o.push_back(part.o);
    lse.push_back(part.lse);
  }
  return {at::cat(o, 1), at::cat(lse, 2)};
}

}  // namespace

at::Tensor compressed_probabilities(const at::Tensor& q, const at::Tensor& k_cmp, const Geometry& g,
                                    const CuSeqlens& cu_seqlens) {
  check(SelectArgs{q, k_cmp, g, cu_seqlens});
  std::vector<at::Tensor> rows;
  std::int64_t first = 0;
  for (const auto& [begin, end] : documents(cu_seqlens, q.size(1))) {
    const std::int64_t S = end - begin, N_c = compressed_blocks(g, S);
    if (S == 0) continue;
    const auto own = scores_key_by_key(q.narrow(1, begin, S), k_cmp.narrow(1, first, N_c));
    const auto p = masked_softmax(own, complete_blocks(g, S, N_c, q)).p.flatten(1, 2);  // [B,Hq,S,N_c]
    rows.push_back(at::constant_pad_nd(p, {first, k_cmp.size(1) - first - N_c}));       // 0 for others' blocks
    first += N_c;
  }
  return at::cat(rows, 2);
}

Attended attend_compressed(const AttendCompressedArgs& args) {
  check(args);
  std::int64_t first = 0;
  return per_document(args.cu_seqlens, args.q.size(1), [&](std::int64_t begin, std::int64_t S) {
    const std::int64_t N_c = compressed_blocks(args.geometry, S);
    auto part = attend(args.q.narrow(1, begin, S), args.kv.k.narrow(1, first, N_c), args.kv.v.narrow(1, first, N_c),
                       complete_blocks(args.geometry, S, N_c, args.q));
    first += N_c;
    return part;
  });
}

Attended attend_selected(const AttendSelectedArgs& args) {
  check(args);
  return per_document(args.cu_seqlens, args.q.size(1), [&](std::int64_t begin, std::int64_t S) {
    return attend(args.q.narrow(1, begin, S), args.k.narrow(1, begin, S), args.v.narrow(1, begin, S),
                  chosen_tokens(args.blocks.narrow(1, begin, S), args.geometry));
  });
}

Attended attend_window(const AttendWindowArgs& args) {
  check(args);
  return per_document(args.cu_seqlens, args.q.size(1), [&](std::int64_t begin, std::int64_t S) {
    return attend(args.q.narrow(1, begin, S), args.k.narrow(1, begin, S), args.v.narrow(1, begin, S),
                  window(args.geometry, S, args.q));
  });
}

}  // namespace nsa::reference
