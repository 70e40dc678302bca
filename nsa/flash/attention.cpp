#include "nsa/flash/attention.hpp"

#include <ATen/ATen.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <fmt/format.h>

#include <algorithm>

namespace nsa::flash {

namespace {

// The kernels want the last dimension dense; everything else may be strided.
at::Tensor dense_rows(const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

struct Output {
  at::Tensor o, lse;
};
// q, k, v [B,S,heads,D] without cu_seqlens, [total,heads,D] with.
Output causal(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const std::optional<at::Tensor>& cu_seqlens, std::int64_t longest, std::optional<std::int64_t> w) {
  const std::optional<std::int64_t> left = w ? std::optional(*w - 1) : std::nullopt;
  // The right bound is said twice: ATen drops is_causal for a single query and would then take another kernel.
  const auto [o, lse, rng, unused, debug] = at::_flash_attention_forward(
      dense_rows(q), dense_rows(k), dense_rows(v), cu_seqlens, cu_seqlens, longest, longest,
      /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false,
      /*scale=*/std::nullopt, left, /*window_size_right=*/0);
  return {o, lse};
}

}  // namespace

void require(const Call& call, Op op) {
  if (const auto reason = flash_refusal(call, op); !reason.empty())
    throw Unsupported(fmt::format("flash does not serve this {}: {}; use sdpa", to_string(op), reason));
}

Attended causal_dense(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::optional<std::int64_t> w) {
  const auto [o, lse] = causal(q, k, v, std::nullopt, q.size(1), w);
  return {o, lse};
}

Attended causal_varlen(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const std::vector<std::int64_t>& lengths, std::optional<std::int64_t> w) {
  auto host = at::zeros({static_cast<std::int64_t>(lengths.size()) + 1}, at::kInt);
  auto values = host.accessor<std::int32_t, 1>();
  for (std::size_t i = 0; i < lengths.size(); ++i)
    values[static_cast<std::int64_t>(i) + 1] =
        values[static_cast<std::int64_t>(i)] + static_cast<std::int32_t>(lengths[i]);
  check_cu_seqlens(host, q.size(0) * q.size(1));  // also what was built here: a wrong array is an illegal access later

  const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  // The copy waits for the device, which a CUDA graph refuses; equal lengths (nothing is packed) need none.
  const auto starts =
      *shortest == *longest ? at::arange(host.numel(), q.options().dtype(at::kInt)) * *longest : host.to(q.device());
  const auto [o, lse] = causal(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), starts, *longest, w);
  return {o.view_as(q), lse.view({q.size(2), q.size(0), q.size(1)}).transpose(0, 1)};  // lse was [Hq,total]
}

}  // namespace nsa::flash
