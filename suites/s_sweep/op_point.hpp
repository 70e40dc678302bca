// One point of the sweep over the seven functions: one way of computing one function, fed with one input,
// forward and backward.
//
// The rule. Where the fp64 reference of the same rounded inputs, brought to the storage dtype, is finite, the result
// must be finite; where it overflows, the result must not be finite. In between, where the reference is within a
// factor of 4 of the dtype's largest number, rounding decides and either is right. A log-sum-exp is -inf for a row that
// sees nothing. Padding may hold anything; nothing else may. The reference is computed only where it can matter: when
// something is not finite, or when the content is meant to overflow.
#pragma once

#include <optional>

#include "suites/oracle/backends.hpp"
#include "suites/probes/finite_check.hpp"
#include "suites/s_sweep/op_content.hpp"

namespace suites::s_sweep_cases {

struct OpPoint {
  std::string way;  // oracle::way
  OpInputOptions input;
};

struct OpTrial {
  at::Device device;
  std::uint64_t seed = 0;  // of the inputs
  bool locate = true;      // a failure is run a second time to find the operation that made it
};
// Nothing when all is well.
[[nodiscard]] std::optional<probes::Diagnosis> diagnose_op(const Subject& subject, const OpPoint& point,
                                                           const OpTrial& trial);

}  // namespace suites::s_sweep_cases
