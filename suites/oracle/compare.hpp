// Comparison of a result with the fp64 reference. The allowed error is not a guessed tolerance: it is a small factor
// times the error that the naive computation makes in the same dtype, plus a rounding floor, below an absolute ceiling
// so that a bad naive computation cannot buy a bad result. NaN, +inf and -inf must stand in exactly the same places.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "harness/context.hpp"

namespace suites::oracle {

// All relative to the largest finite |reference|.
struct Budget {
  double factor = 4;      // times the naive computation's error
  double floor_ulps = 4;  // plus this many epsilons of the dtype
  double ceiling = 0;     // but never more than this
};
[[nodiscard]] Budget budget(at::ScalarType dtype, double factor);

// The indices of element `flat` of a tensor of these sizes.
[[nodiscard]] std::vector<std::int64_t> unravel(std::int64_t flat, at::IntArrayRef sizes);

// The same dtype, sizes and bytes, on whatever devices: NaN equals itself, and 0 is not -0.
[[nodiscard]] bool same_bits(const at::Tensor& a, const at::Tensor& b);

struct Candidate {
  at::Tensor value;      // what the backend gave, in its dtype
  at::Tensor reference;  // fp64, from the same (rounded) inputs
  at::Tensor naive;      // the obvious computation in the backend's dtype
};

struct Verdict {
  bool missing = false;  // there is no value at all
  bool shapes_agree = true;
  bool masks_agree = true;  // NaN, +inf, -inf in the same places
  double error = 0;         // largest absolute error over finite values
  double naive_error = 0;
  double bound = 0;
  std::vector<std::int64_t> index;  // of the worst value, or of the first that differs in kind
  double value = 0, wanted = 0;     // there
  std::string where;                // oracle::extent_of_error, where it is not good

  [[nodiscard]] bool within_budget() const;
  [[nodiscard]] bool good() const { return shapes_agree && masks_agree && within_budget(); }
  [[nodiscard]] double headroom() const;  // error / bound; above 1 is over budget
  [[nodiscard]] harness::Json evidence() const;
};
[[nodiscard]] Verdict judge(const Candidate& candidate, const Budget& budget);

// Plain closeness where both come from the same arithmetic: |a - b| <= ulps * epsilon * max|b|, masks equal.
[[nodiscard]] Verdict near(const at::Tensor& value, const at::Tensor& wanted, double ulps);

struct Subjects {
  std::string op, output;
  bool gradient = false;
};
// Records the checks of a verdict: existence and shape (kGraphBreak for a gradient that is missing, kOutputContract),
// places of non-finite values (kNonFiniteMask), and error against budget (kOutputBudget or kGradientBudget), with the
// headroom as a metric.
bool expect_good(harness::Context& context, const Verdict& verdict, const Subjects& what);

}  // namespace suites::oracle
