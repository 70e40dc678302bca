// One pass of a one-layer model under given flags, and everything that can be seen of what it really did.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "suites/flag_matrix/ways.hpp"
#include "suites/subject.hpp"

namespace suites::flag_execution {

struct Plan {
  nsa::ModelConfig model;  // one layer
  nsa::Precision precision = nsa::Precision::fp32;
  at::Device device = at::kCPU;
  std::int64_t S = 0;
  std::uint64_t seed = 0;  // of weights and tokens: the same for every setting of the flags
};

struct Execution {
  std::map<std::string, probes::OpCounts> ops;  // by function of the ops table, only of those that were called
  flag_ways::Inputs inputs;                     // of the attentions that were called
  at::Tensor gates;                             // as `combine` got them; undefined when it was not called
  bool gates_have_gradient = false;             // after backward: some gate parameter has a gradient other than 0
  bool others_have_gradient = false;            // the query projection's likewise
  [[nodiscard]] bool called(const std::string& op) const { return ops.contains(op); }
};

// A call for routing as the model makes it in execute().
[[nodiscard]] nsa::Call call_of(const Plan& plan, bool training);
// Forward, and backward of the loss when `training`.
[[nodiscard]] Execution execute(const Subject& subject, const Plan& plan, const nsa::EffectiveFlags& flags,
                                bool training);

}  // namespace suites::flag_execution
