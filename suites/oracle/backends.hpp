// The ways in which the seven functions can be computed, as parity and autograd go through them: each a set of flags of
// its own, never those of the process's environment.
#pragma once

#include <string>
#include <vector>

#include "suites/oracle/op_case.hpp"
#include "suites/subject.hpp"

namespace suites::oracle {

struct Way {
  // "sdpa", "sdpa_masked", "sdpa_packed", "flash_dense", "flash_varlen", "cuda", "reference"
  std::string name;
  std::vector<nsa::Op> ops;  // those that differ from plain sdpa
  bool gradients = true;     // false: serves calls without gradients only
  bool needs_cuda = false;
  std::vector<at::ScalarType> dtypes;
};
[[nodiscard]] const std::vector<Way>& ways();
[[nodiscard]] const Way& way(const std::string& name);  // throws std::out_of_range

// Why our own kernels do not serve this case by the way `cuda`, in the feature table's words; "" when they do, and for
// every other way.
[[nodiscard]] std::string refusal(const Way& way, const OpShape& shape, nsa::Op op, at::ScalarType dtype,
                                  at::Device device);

// The table as the product assembles it for this case. Skips the case where refusal() says something. Throws
// std::logic_error when the route of `c.op` is another one than the way's name says, so that no comparison is made with
// something else than it claims.
[[nodiscard]] nsa::Ops ops_of(const Subject& subject, const Way& way, const OpShape& shape, nsa::Op op,
                              at::ScalarType dtype, at::Device device);

// FlashAttention-2 wants Dk = Dv, a multiple of 8; our own kernels want one of four pairs of widths.
[[nodiscard]] OpShape shape_for(const Way& way, OpShape shape);

}  // namespace suites::oracle
