// Compression and all of attention as one operator: half of the host's work, and no result whose size stands in
// the values of cu_seqlens. A packed batch's compressed blocks lie at the front of room for S/d of them, which
// are never fewer.
#include <ATen/ATen.h>

#include "nsa/attention_args.hpp"
#include "python/arguments.hpp"
#include "python/call.hpp"
#include "python/operators.hpp"

namespace nsa::python {

std::int64_t room_for_blocks(const Geometry& g, std::int64_t S) { return S / g.d; }

namespace {

Tensor with_room(const Tensor& blocks, std::int64_t count) {
  auto roomy = at::zeros({blocks.size(0), count, blocks.size(2), blocks.size(3)}, blocks.options());
  roomy.narrow(1, 0, blocks.size(1)).copy_(blocks);
  return roomy;
}

}  // namespace

AttentionOutputs attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_sel, const Tensor& v_sel,
                           const Tensor& k_win, const Tensor& v_win, const Tensor& gates, const MaybeTensor& blocks,
                           const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d, std::int64_t l_sel,
                           std::int64_t n_sel, std::int64_t w, std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check(AttentionArgs{q, k, v, k_sel, v_sel, k_win, v_win, gates, g, cu_seqlens, blocks});
  auto [k_cmp, v_cmp] = compress_checked(k, v, cu_seqlens, g, backend);
  auto attended = attend_checked(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens, g, backend);
  if (cu_seqlens) {
    const std::int64_t count = room_for_blocks(g, k.size(1));
    k_cmp = with_room(k_cmp, count);
    v_cmp = with_room(v_cmp, count);
  }
  return std::tuple_cat(std::move(attended), std::tuple(k_cmp, v_cmp));
}

Gradients attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp,
                             const Tensor& k_sel, const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win,
                             const Tensor& gates, const Tensor& blocks, const Tensor& o_cmp, const Tensor& o_sel,
                             const Tensor& o_win, const Tensor& stats_cmp, const Tensor& stats_sel,
                             const Tensor& stats_win, const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                             std::int64_t l_sel, std::int64_t n_sel, std::int64_t w, std::array<bool, 8> wanted,
                             std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check_geometry("attention", g);
  const std::int64_t S = q.dim() == 4 ? q.size(1) : 0;
  const auto own_blocks = [&](std::string_view name, const Tensor& roomy) {
    const std::int64_t count = cu_seqlens ? compressed_blocks(g, cu_seqlens, S) : compressed_blocks(g, S);
    const std::int64_t room = cu_seqlens ? room_for_blocks(g, S) : count;
    if (roomy.dim() != 4 || roomy.size(1) != room)
      throw ContractError("attention_backward: " + std::string(name) + " is not [B," + std::to_string(room) +
                          ",G,D]; allowed: what attention gave");
    return roomy.narrow(1, 0, count);
  };
  const auto keys = own_blocks("k_cmp", k_cmp), values = own_blocks("v_cmp", v_cmp);
  auto gradients =
      attend_backward(dout, q, keys, values, k_sel, v_sel, k_win, v_win, gates, blocks, o_cmp, o_sel, o_win, stats_cmp,
                      stats_sel, stats_win, cu_seqlens, l, d, l_sel, n_sel, w, wanted, backend);
  if (!wanted[1] && !wanted[2]) return gradients;
  const std::size_t first = wanted[0] ? 1 : 0;
  const auto given = [&](bool is_wanted, std::size_t place, const Tensor& like) {
    return is_wanted ? gradients[place] : at::zeros(like.sizes(), like.options());
  };
  const auto [dk, dv] = compress_backward(given(wanted[1], first, keys), given(wanted[2], first + wanted[1], values), S,
                                          cu_seqlens, l, d, l_sel, n_sel, w, backend);
  if (wanted[1]) gradients[first] = dk;
  if (wanted[2]) gradients[first + wanted[1]] = dv;
  return gradients;
}

}  // namespace nsa::python
