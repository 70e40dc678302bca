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
  throw ContractError(fmt::format("q or x is {}; allowed: Double, Float, BFloat16 or Half", c10::toString(type)));
}

void add_machine(Call& call, at::Device device) {
  call.cuda = device.is_cuda();
  if (!call.cuda) return;
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  call.cuda_major = properties->major;
  call.cuda_minor = properties->minor;
}

}  // namespace

Call call_on(at::Device device) {
  Call call;
  add_machine(call, device);
  return call;
}

Call call_of(const at::Tensor& q, const CallOptions& options) {
  Call call{.B = q.size(0),
            .S = q.size(1),
            .Hq = q.size(2),
            .G = options.G,
            .Dk = q.size(3),
            .Dv = options.Dv,
            .geometry = options.geometry,
            .precision = precision_of(q.scalar_type()),
            .packed = options.packed,
            .training = options.grad && at::GradMode::is_enabled(),
            .phi = options.phi};
  add_machine(call, q.device());
  return call;
}

Call call_of(const ModelConfig& model, const at::Tensor& x) {
  return call_of(model, x.size(0), x.size(1), precision_of(x.scalar_type()), x.device());
}

Call call_of(const ModelConfig& model, std::int64_t B, std::int64_t S, Precision precision, at::Device device,
             bool training, bool packed) {
  Call call{.B = B,
            .S = S,
            .Hq = model.n_heads,
            .G = model.n_kv_groups,
            .Dk = model.d_k,
            .Dv = model.d_v,
            .geometry = model.nsa,
            .precision = precision,
            .packed = packed,
            .training = training,
            .phi = model.phi};
  add_machine(call, device);
  return call;
}

}  // namespace nsa
