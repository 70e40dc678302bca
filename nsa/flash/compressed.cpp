// Note [Strides as queries]
// Query t sees the blocks 0 .. floor((t+1-l)/d): from token l-1 on, each stride of d tokens sees one block more than
// the stride before. So a document has as many strides as blocks, N_c, and stride i sees blocks 0..i: plain causal
// attention, N_c queries against N_c keys, in which the d tokens of a stride are d more heads (h*d query heads a
// group). K and V are used as they are; Q and O are rearranged, not repeated; tokens before l-1 see nothing and
// never enter. In the backward pass ATen holds one dK and dV a query head, here Hq*d of length N_c: as many bytes as
// Q's gradient, twice.
#include <ATen/ATen.h>

#include <limits>

#include "nsa/call.hpp"
#include "nsa/flash/attention.hpp"
#include "nsa/flash/flash.hpp"

namespace nsa::flash {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Document {
  std::int64_t begin, length, strides;
  [[nodiscard]] std::int64_t sighted(const Geometry& g) const {
    return length - (g.l - 1);
  }  // tokens that see something
};

std::vector<Document> with_blocks(const AttendCompressedArgs& args) {
  std::vector<Document> result;
  for (const auto& [begin, end] : documents(args.cu_seqlens, args.q.size(1)))
    if (const auto strides = compressed_blocks(args.geometry, end - begin); strides > 0)
      result.push_back({begin, end - begin, strides});
  return result;
}

// [B,S,Hq,D] -> [B, all strides, G*d*h, D]; the last stride of a document is filled up with rows
// that are dropped later.
at::Tensor strides_of(const at::Tensor& q, const std::vector<Document>& documents, const Geometry& g, std::int64_t G) {
  std::vector<at::Tensor> rows;
  for (const auto& document : documents) {
    const std::int64_t sighted = document.sighted(g);
    const auto own = q.narrow(1, document.begin + g.l - 1, sighted);
    rows.push_back(at::constant_pad_nd(own, {0, 0, 0, 0, 0, document.strides * g.d - sighted}));
  }
  const auto all = at::cat(rows, 1);
  const std::int64_t h = q.size(2) / G;
  return all.reshape({q.size(0), -1, g.d, G, h, q.size(3)})
      .transpose(2, 3)
      .reshape({q.size(0), -1, G * g.d * h, q.size(3)});
}

// x [B, all strides, G*d*h, D] -> [B,S,Hq,D], `empty` for the tokens that see nothing.
at::Tensor tokens_of(const at::Tensor& x, const std::vector<Document>& documents, const AttendCompressedArgs& args,
                     double empty) {
  const auto& g = args.geometry;
  const std::int64_t B = x.size(0), S = args.q.size(1), Hq = args.q.size(2), G = args.kv.k.size(2), D = x.size(3);
  const auto rows = x.reshape({B, -1, G, g.d, Hq / G, D}).transpose(2, 3).reshape({B, -1, Hq, D});
  std::vector<at::Tensor> parts;
  std::int64_t written = 0, first = 0;
  const auto blind = [&](std::int64_t until) {
    if (until > written) parts.push_back(at::full({B, until - written, Hq, D}, empty, x.options()));
    written = until;
  };
  for (const auto& document : documents) {
    blind(document.begin + g.l - 1);
    parts.push_back(rows.narrow(1, first * g.d, document.sighted(g)));
    written += document.sighted(g);
    first += document.strides;
  }
  blind(S);
  return at::cat(parts, 1);
}

}  // namespace

Attended attend_compressed(const AttendCompressedArgs& args) {
  check(args);
  const auto& [q, kv, g, cu_seqlens] = args;
  const bool grad = q.requires_grad() || kv.k.requires_grad() || kv.v.requires_grad();
  require(call_of(q, {kv.v.size(2), kv.v.size(3), g, cu_seqlens.has_value(), grad}), Op::attend_compressed);
  const auto documents = with_blocks(args);
  if (documents.empty()) {
    // Nothing is visible anywhere. Sums over no elements keep q, k and v in the graph, with gradients of 0.
    const auto nothing = q.narrow(1, 0, 0).sum() + kv.k.sum() + kv.v.sum();
    const auto lse = at::full({q.size(0), q.size(2), q.size(1)}, -kInfinity, q.options().dtype(at::kFloat));
    return {at::zeros_like(q) + nothing, lse};
  }

  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < q.size(0); ++b)
    for (const auto& document : documents) lengths.push_back(document.strides);
  const auto attended = causal_varlen(strides_of(q, documents, g, kv.k.size(2)), kv.k, kv.v, lengths, std::nullopt);
  const auto lse = attended.lse.transpose(1, 2).unsqueeze(3);  // [B, all strides, G*d*h, 1]
  return {tokens_of(attended.o, documents, args, 0.0),
          tokens_of(lse, documents, args, -kInfinity).squeeze(3).transpose(1, 2)};
}

}  // namespace nsa::flash
