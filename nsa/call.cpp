#include "nsa/call.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAContext.h>
#include <fmt/format.h>

#include "nsa/ops.hpp"

namespace nsa {

namespace {

Precision precision_of(at::ScalarType type) {
  if (type == at::kDouble) return Precision::fp64;
  if (type == at::kFloat) return Precision::fp32;
  if (type == at::kBFloat16 || type == at::kHalf) return Precision::bf16;
  throw ContractError(fmt::format("q is {}; allowed: Double, Float, BFloat16 or Half", c10::toString(type)));
}

}  // namespace

Call call_of(const at::Tensor& q, const CallOptions& options) {
  Call call{.B = q.size(0),
            .S = q.size(1),
            .Hq = q.size(2),
            .G = options.G,
            .Dk = q.size(3),
            .Dv = options.Dv,
            .geometry = options.geometry,
            .precision = precision_of(q.scalar_type()),
            .cuda = q.is_cuda(),
            .packed = options.packed,
            .training = options.grad && at::GradMode::is_enabled(),
            .phi = options.phi};
  if (call.cuda) {
    const auto* device = at::cuda::getDeviceProperties(q.get_device());
    call.cuda_major = device->major;
    call.cuda_minor = device->minor;
  }
  return call;
}

}  // namespace nsa
