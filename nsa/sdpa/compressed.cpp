// Compression and attention over the compressed blocks.
#include <ATen/ATen.h>

#include <algorithm>

#include "nsa/sdpa/rows.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa::sdpa {

namespace {

constexpr std::int64_t kQueryChunk = 1024;  // bounds the mask: a chunk sees only the blocks complete at its end

// Mean of x [B,S,G,D] over each block: sums of d tokens, of which every block holds l/d. Sums in fp32 at least.
at::Tensor mean_pool(const at::Tensor& x, const Geometry& g) {
  const std::int64_t N_c = compressed_blocks(g, x.size(1));
  if (N_c == 0) return x.narrow(1, 0, 0);
  const std::int64_t strides = N_c + g.l / g.d - 1;
  const auto sums =
      x.narrow(1, 0, strides * g.d).unflatten(1, {strides, g.d}).sum(2, false, accumulation_type(x.scalar_type()));
  auto total = sums.narrow(1, 0, N_c);
  for (std::int64_t i = 1; i < g.l / g.d; ++i) total = total + sums.narrow(1, i, N_c);
  return (total / static_cast<double>(g.l)).to(x.scalar_type());
}

// phi = mlp, in the storage type.
at::Tensor learned_pool(const at::Tensor& x, const Geometry& g, const PhiWeights& phi) {
  if (x.size(1) < g.l) return x.narrow(1, 0, 0);
  const auto blocks = x.unfold(1, g.l, g.d).transpose(3, 4);  // [B,N_c,G,l,D]
  return at::linear(at::silu(at::linear((blocks + phi.position).flatten(3), phi.fc1)), phi.fc2);
}

at::Tensor pool(const at::Tensor& x, const CompressArgs& args, const std::optional<PhiWeights>& phi) {
  return per_document(args.cu_seqlens, x.size(1), [&](std::int64_t begin, std::int64_t S) {
    const auto own = x.narrow(1, begin, S);
    return phi ? learned_pool(own, args.geometry, *phi) : mean_pool(own, args.geometry);
  });
}

// q [B,S,Hq,Dk] of one document against its blocks k [B,N_c,G,Dk], v [B,N_c,G,Dv].
at::Tensor attend_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Geometry& g) {
  const std::int64_t S = q.size(1), G = k.size(2), h = q.size(2) / G;
  // No block at all: products over no keys are 0 and still part of the graph, so that every gradient is 0, not missing.
  if (k.size(1) == 0)
    return rows_to_heads(at::matmul(at::matmul(heads_to_rows(q, G), k.permute({0, 2, 3, 1})), v.transpose(1, 2)), S);

  const std::int64_t blind = g.l - 1;  // tokens before the first complete block see nothing and never reach a softmax
  const auto rows = heads_to_rows(q.narrow(1, blind, S - blind), G);
  const Keys keys = keys_for_rows(k, v);
  std::vector<at::Tensor> parts;
  for (std::int64_t begin = blind; begin < S; begin += kQueryChunk) {
    const std::int64_t count = std::min(kQueryChunk, S - begin);
    const std::int64_t complete = compressed_blocks(g, begin + count);
    const auto last_token = positions(0, complete, q) * g.d + (g.l - 1);
    const auto visible = positions(begin, count, q).unsqueeze(1).ge(last_token.unsqueeze(0));
    parts.push_back(attend_rows(rows.narrow(2, (begin - blind) * h, count * h), keys.narrow(0, complete), visible, h));
  }
  const auto o = rows_to_heads(parts.size() == 1 ? parts.front() : at::cat(parts, 2), S - blind);
  return at::constant_pad_nd(o, {0, 0, 0, 0, blind, 0});
}

}  // namespace

Compressed compress(const CompressArgs& args) {
  check(args);
  return {pool(args.k, args, args.phi_k), pool(args.v, args, args.phi_v)};
}

Attended attend_compressed(const AttendCompressedArgs& args) {
  check(args);
  std::int64_t first = 0;
  const auto o = per_document(args.cu_seqlens, args.q.size(1), [&](std::int64_t begin, std::int64_t S) {
    const std::int64_t N_c = compressed_blocks(args.geometry, S);
    auto part = attend_blocks(args.q.narrow(1, begin, S), args.kv.k.narrow(1, first, N_c),
                              args.kv.v.narrow(1, first, N_c), args.geometry);
    first += N_c;
    return part;
  });
  return {o, {}};
}

}  // namespace nsa::sdpa
