// One pass of a one-layer model under given flags, and everything that can be seen of what it really did.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "suites/flag_matrix/footprint.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/subject.hpp"

namespace suites::flag_execution {

struct Plan {
  nsa::ModelConfig model;  // one layer
  nsa::Precision precision = nsa::Precision::fp32;
  at::Device device = at::kCPU;
  std::int64_t B = 1, S = 0;
  bool packed = false;     // B = 1: a third, an empty document, one token, and two thirds of the S tokens
  std::uint64_t seed = 0;  // of weights and tokens: the same for every setting of the flags
};
// The documents of a packed batch of S tokens, int32 [documents + 1], and the S whose longest document has `length`.
[[nodiscard]] at::Tensor documents_of(std::int64_t S);
[[nodiscard]] std::int64_t packed_length(std::int64_t length);

struct Execution {
  // By function of the ops table, only of those that were called; "attend" alone where attention went in one.
  std::map<std::string, probes::OpCounts> ops;
  flag_footprint::Inputs inputs;      // of the attentions that were called
  at::Tensor gates;                   // as `combine` got them, else as the layer made them
  bool gates_carry_graph = false;     // a gradient could flow into them
  bool others_have_gradient = false;  // after backward: some parameter outside the gate has one
  at::Tensor output;                  // logits
  // Autograd refused the backward pass, and what it said; the gradients above are then unknown.
  std::optional<probes::InplaceWrite> overwritten;
  std::map<std::string, nsa::Choice> routes;  // by function: what the product says that it took
  std::int64_t norms_by_aten = 0;             // operations round the attention that norm
  bool mlp_by_aten = false;                   // at::matmul made its products
  bool silu_by_aten = false;                  // at::silu ran between them
  std::vector<nsa::PartTaken> parts;          // what the product says of norms, projections, MLP
  [[nodiscard]] bool called(const std::string& op) const { return ops.contains(op); }
  [[nodiscard]] bool in_one() const { return called("attend"); }  // all branches, by our own kernels
};

// A call for routing as the model makes it in execute().
[[nodiscard]] nsa::Call call_of(const Plan& plan, bool training);

// A model whose gates differ from token to token whatever its initial values are: the last layer of the gate is drawn
// anew, so that gates which are a third each can only come from a flag.
[[nodiscard]] Instance make_model(const Subject& subject, const Plan& plan, const nsa::EffectiveFlags& flags);
// Forward, and backward of a sum over the logits when `training`.
[[nodiscard]] Execution pass(Instance& instance, const Plan& plan, bool training);
[[nodiscard]] Execution execute(const Subject& subject, const Plan& plan, const nsa::EffectiveFlags& flags,
                                bool training);

}  // namespace suites::flag_execution
