#include "nsa/sdpa/rows.hpp"

#include <ATen/ATen.h>

namespace nsa::sdpa {

at::Tensor heads_to_rows(const at::Tensor& q, std::int64_t G) {
  const std::int64_t B = q.size(0), S = q.size(1), h = q.size(2) / G;
  return q.reshape({B, S, G, h, q.size(3)}).permute({0, 2, 1, 3, 4}).reshape({B, G, S * h, q.size(3)});
}

at::Tensor rows_to_heads(const at::Tensor& o, std::int64_t S) {
  const std::int64_t B = o.size(0), G = o.size(1), h = o.size(2) / S;
  return o.reshape({B, G, S, h, o.size(3)}).permute({0, 2, 1, 3, 4}).reshape({B, S, G * h, o.size(3)});
}

at::Tensor repeat_rows(const at::Tensor& mask, std::int64_t h) {
  return mask.unsqueeze(1).expand({-1, h, -1}).flatten(0, 1);
}

at::Tensor positions(std::int64_t first, std::int64_t count, const at::Tensor& like) {
  return at::arange(first, first + count, at::TensorOptions().dtype(at::kLong).device(like.device()));
}

at::Tensor per_document(const CuSeqlens& cu_seqlens, std::int64_t S,
                        const std::function<at::Tensor(std::int64_t, std::int64_t)>& one) {
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : documents(cu_seqlens, S))
    if (begin < end) parts.push_back(one(begin, end - begin));
  return parts.size() == 1 ? parts.front() : at::cat(parts, 1);
}

}  // namespace nsa::sdpa
