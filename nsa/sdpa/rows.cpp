#include "nsa/sdpa/rows.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <fmt/format.h>

#include <mutex>

namespace nsa::sdpa {

namespace {

struct CudnnSetting {
  std::mutex mutex;
  int lives = 0;
  bool found = true;
};
CudnnSetting& cudnn_setting() {
  static CudnnSetting setting;
  return setting;
}

}  // namespace

WithoutCudnn::WithoutCudnn() {
  CudnnSetting& setting = cudnn_setting();
  const std::lock_guard lock(setting.mutex);
  if (setting.lives++ > 0) return;
  setting.found = at::globalContext().userEnabledCuDNNSDP();
  at::globalContext().setSDPUseCuDNN(false);
}

WithoutCudnn::~WithoutCudnn() {
  CudnnSetting& setting = cudnn_setting();
  const std::lock_guard lock(setting.mutex);
  if (--setting.lives == 0) at::globalContext().setSDPUseCuDNN(setting.found);
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& visible) {
  if (const std::int64_t queries = q.size(-2), keys = k.size(-2); keys > 0 && queries > kLargestMask / keys)
    throw ContractError(fmt::format("attention of {} queries to {} keys by a mask; allowed: at most {} places in it",
                                    queries, keys, kLargestMask));
  const WithoutCudnn guard;
  return at::scaled_dot_product_attention(q, k, v, visible);
}

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
