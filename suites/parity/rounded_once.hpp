// Case rounded_once: parts of the model that compute in fp32 whatever the storage type, and round their result.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/context.hpp"
#include "nsa/config.hpp"
#include "nsa/flags.hpp"
#include "nsa/model/attention.hpp"
#include "nsa/model/mlp.hpp"
#include "nsa/model/norm.hpp"
#include "nsa/ops.hpp"

namespace suites::parity_cases {

// The product's own; a test puts another one in a place.
struct ModelParts {
  // RmsNorm behind the addition of `delta`, or where that is undefined alone.
  std::function<nsa::Normed(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight)> norm;
  std::function<at::Tensor(const at::Tensor& heads, const at::Tensor& rotations)> rotate;  // nsa::rotate
  nsa::Ops ops;                                                                            // compress, combine
  // A layer's attention, of which only what is given to attention is asked for: projections, RoPE, gate.
  std::function<nsa::NsaAttention(const nsa::ModelConfig& model)> attention;
  std::function<nsa::Projected(nsa::NsaAttention& layer, const at::Tensor& x, const at::Tensor& rotations)> project;
  std::function<at::Tensor(nsa::Mlp& mlp, const at::Tensor& x)> mlp;
};
// `ops`: as the product assembles them for bf16. `flags`: by which norm, projections and MLP go their ways.
[[nodiscard]] ModelParts parts_of_product(nsa::Ops ops, const nsa::EffectiveFlags& flags = {});

// `tokens`: of a sequence that a layer's parts get, two sequences each.
void judge_rounding(harness::Context& context, const nsa::ModelConfig& model, std::int64_t tokens, at::Device device,
                    const ModelParts& parts);
// Of it projections, RoPE and gate, and the MLP (rounded_layer.cpp). Weights of products are ones and zeros: forward
// they only choose or add four.
void judge_layer(harness::Context& context, const nsa::ModelConfig& model, std::int64_t tokens, at::Device device,
                 const ModelParts& parts);

inline constexpr std::int64_t kRoundedSequences = 2;
// Times the error of one rounding. A norm that rounds its mean and its products makes 1.7 times that of one rounding
// and more; one that does not, 1.0. Of sums of values that are rounded themselves: 1.4.
inline constexpr double kOneRounding = 1.3, kRoundedTerms = 2.2;
// Of `outputs`, by `inputs`; undefined where none arrives. The graph goes on where `retain_graph` says so.
[[nodiscard]] std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs,
                                                const std::vector<at::Tensor>& inputs,
                                                const std::vector<at::Tensor>& arrives, bool retain_graph = false);
// Of both that follow: an undefined value is a gradient that does not arrive, a finding.
//
// A value against what it is in exact arithmetic: off by at most so many times what one rounding to bf16 costs.
void expect_one_rounding(harness::Context& context, const std::string& what, const at::Tensor& value,
                         const at::Tensor& exact, double most = kOneRounding);
// A value that is kept in fp32, or is one of those given: off by at most 1e-5 of its RMS.
void expect_single(harness::Context& context, const std::string& what, const at::Tensor& value,
                   const at::Tensor& exact);

}  // namespace suites::parity_cases
