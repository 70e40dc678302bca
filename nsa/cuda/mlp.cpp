#include "nsa/cuda/mlp.hpp"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/mlp.hpp"
#include "nsa/kernels/plan/device.hpp"

namespace nsa::cuda {

std::string silu_product_refusal(const at::Tensor& x, const at::Tensor& fc1, const at::Tensor& fc2) {
  if (auto reason = device_refusal(x); !reason.empty()) return reason;
  const auto type = x.scalar_type();
  if (type != at::kBFloat16 && type != at::kHalf)
    return fmt::format("x is {}; served: BFloat16 and Half", c10::toString(type));
  for (const at::Tensor* weight : {&fc1, &fc2})
    if (weight->scalar_type() != type || weight->device() != x.device())
      return fmt::format("x is {}, and a weight is of another type or device; served: one for all",
                         c10::toString(type));
  const std::int64_t width = x.size(-1), wide = fc1.size(0);
  if (width == 0 || fc1.size(1) != width || fc2.size(0) != width || fc2.size(1) != wide)
    return "x, fc1 and fc2 are not of one width, or it is 0";
  const OnDeviceOf device(x);
  return kernels::silu_product_refusal(x.numel() / width, width, wide, kernels::current_device());
}

Activated silu_product(const at::Tensor& x, const at::Tensor& fc1) {
  const OnDeviceOf device(x);
  const at::Tensor rows = dense(x), weight = dense(fc1);
  kernels::SiluProduct p;
  p.rows = size_of(rows, 0), p.inner = size_of(rows, 1), p.wide = size_of(weight, 0);
  p.storage = storage_of(rows);
  const auto result = [&] { return empty({p.rows, p.wide}, rows.scalar_type(), rows); };
  const Activated all{result(), result()};
  p.x = rows.const_data_ptr();
  p.w = weight.const_data_ptr();
  p.hidden = all.hidden.data_ptr();
  p.active = all.active.data_ptr();
  kernels::silu_product(p, kernels::current_device(), device.stream());
  return all;
}

at::Tensor silu_product_backward(const at::Tensor& dy, const at::Tensor& fc2, const at::Tensor& hidden) {
  const OnDeviceOf device(hidden);
  const at::Tensor rows = dense(dy), weight = dense(fc2);
  kernels::SiluProductBackward p;
  p.rows = size_of(rows, 0), p.inner = size_of(rows, 1), p.wide = size_of(hidden, 1);
  p.storage = storage_of(hidden);
  const at::Tensor dhidden = empty(hidden.sizes(), hidden.scalar_type(), hidden);
  p.dy = rows.const_data_ptr();
  p.w = weight.const_data_ptr();
  p.hidden = hidden.const_data_ptr();
  p.dhidden = dhidden.data_ptr();
  kernels::silu_product_backward(p, kernels::current_device(), device.stream());
  return dhidden;
}

}  // namespace nsa::cuda
