// The Call (route.hpp) that live tensors make, or will make.
#pragma once

#include <ATen/core/Tensor.h>

#include "nsa/route.hpp"

namespace nsa {

struct CallOptions {
  std::int64_t G = 1, Dv = 1;
  Geometry geometry;
  bool packed = false;
  bool grad = false;  // something requires a gradient; training is that while gradients are on
  Phi phi = Phi::avg;
};
// q [B,S,Hq,Dk]. Throws ContractError for a dtype that no Precision names; Half counts as bf16,
// whose backends it shares.
[[nodiscard]] Call call_of(const at::Tensor& q, const CallOptions& options);

// A Call of which the machine alone is said: the device and its compute capability.
[[nodiscard]] Call call_on(at::Device device);

// The Call that a layer of this configuration makes for its input x [B,S,dim], one document, without gradients: of what
// is before attention.
[[nodiscard]] Call call_of(const ModelConfig& model, const at::Tensor& x);

// The Call that a model of this configuration makes there (compute capability filled in on a GPU).
[[nodiscard]] Call call_of(const ModelConfig& model, std::int64_t B, std::int64_t S, Precision precision,
                           at::Device device, bool training = false, bool packed = false);

}  // namespace nsa
