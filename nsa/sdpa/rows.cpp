#include "nsa/sdpa/rows.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <mutex>

namespace nsa::sdpa {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CudnnSetting {
  std::mutex mutex;
  int lives = 0;
  bool found = true;
};
CudnnSetting& cudnn_setting() {
  static CudnnSetting setting;
  return setting;
}

void check_mask(const at::Tensor& q, const at::Tensor& k) {
  if (const std::int64_t queries = q.size(-2), keys = k.size(-2); keys > 0 && queries > kLargestMask / keys)
    throw ContractError(fmt::format("attention of {} queries to {} keys by a mask; allowed: at most {} places in it",
                                    queries, keys, kLargestMask));
}

at::Tensor repeat_rows(const at::Tensor& mask, std::int64_t h) {  // [T,K] -> [T*h,K]
  return mask.unsqueeze(1).expand({-1, h, -1}).flatten(0, 1);
}

// The kernel takes rows that lie as they should for granted.
at::Tensor wide(const at::Tensor& t) {
  return t.to(at::kFloat, /*non_blocking=*/false, /*copy=*/false, at::MemoryFormat::Contiguous);
}

// ATen's attention on the CPU in fp32, of 16-bit rows and fp32 keys and values (Note [Sums of 16 bits]).
struct WidenedRows : torch::autograd::Function<WidenedRows> {
  static at::Tensor added_mask(const at::Tensor& visible, std::int64_t h) {
    const auto mask = at::zeros(visible.sizes(), visible.options().dtype(at::kFloat))
                          .masked_fill_(visible.logical_not(), -std::numeric_limits<float>::infinity());
    return repeat_rows(mask, h);
  }
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& visible, std::int64_t h) {
    const auto [output, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        wide(rows), k, v, /*dropout_p=*/0.0, /*is_causal=*/false, added_mask(visible, h));
    auto o = output.to(rows.scalar_type());
    context->save_for_backward({rows, k, v, visible, o, lse});
    context->saved_data["h"] = h;
    return o;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &rows = saved[0], &k = saved[1], &v = saved[2], &visible = saved[3], &o = saved[4], &lse = saved[5];
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        wide(gradients[0]), wide(rows), k, v, wide(o), lse, /*dropout_p=*/0.0,
        /*is_causal=*/false, added_mask(visible, context->saved_data["h"].toInt()));
    return {dq.to(rows.scalar_type()), dk, dv, {}, {}};
  }
};

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
  check_mask(q, k);
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

Keys keys_for_rows(const at::Tensor& k, const at::Tensor& v) {
  // ATen's kernel wants one width; its way for two multiplies matrices and has no such sums.
  const bool widen = k.is_cpu() && k.element_size() == 2 && k.size(3) == v.size(3);
  const auto heads_first = [widen](const at::Tensor& t) { return widen ? wide(t.transpose(1, 2)) : t.transpose(1, 2); };
  return {heads_first(k), heads_first(v)};
}

at::Tensor attend_rows(const at::Tensor& rows, const Keys& keys, const at::Tensor& visible, std::int64_t h) {
  if (keys.k.scalar_type() == rows.scalar_type()) return attend(rows, keys.k, keys.v, repeat_rows(visible, h));
  check_mask(rows, keys.k);
  return WidenedRows::apply(rows, keys.k, keys.v, visible, h);
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
