// Case rounded_once: parts of the model that compute in fp32 whatever the storage type, and round their result.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "harness/context.hpp"
#include "nsa/config.hpp"
#include "nsa/flags.hpp"
#include "nsa/ops.hpp"

namespace suites::parity_cases {

// The product's own; a test puts another one in a place.
struct ModelParts {
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight)> norm;           // RmsNorm
  std::function<at::Tensor(const at::Tensor& heads, const at::Tensor& rotations)> rotate;  // nsa::rotate
  nsa::Ops ops;                                                                            // compress, combine
};
// `ops`: as the product assembles them for bf16. `flags`: by which the norm goes its way.
[[nodiscard]] ModelParts parts_of_product(nsa::Ops ops, const nsa::EffectiveFlags& flags = {});

void judge_rounding(harness::Context& context, const nsa::ModelConfig& model, at::Device device,
                    const ModelParts& parts);

}  // namespace suites::parity_cases
