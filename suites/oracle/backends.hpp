// The table of functions of one way (suites/ways.hpp) for one case, as the product assembles it.
#pragma once

#include <string>

#include "suites/oracle/op_case.hpp"
#include "suites/subject.hpp"
#include "suites/ways.hpp"

namespace suites::oracle {

// Why our own kernels do not serve this case by the way `cuda`, in the feature table's words; "" when they do, and for
// every other way.
[[nodiscard]] std::string refusal(const Way& way, const OpShape& shape, nsa::Op op, at::ScalarType dtype,
                                  at::Device device);

// Skips the case where refusal() says something. Throws std::logic_error when the route of `op` is another one than the
// way's (Way::part), so that no comparison is made with something else than it claims.
[[nodiscard]] nsa::Ops ops_of(const Subject& subject, const Way& way, const OpShape& shape, nsa::Op op,
                              at::ScalarType dtype, at::Device device);

// FlashAttention-2 wants Dk = Dv, a multiple of 8; our own kernels want one of four pairs of widths.
[[nodiscard]] OpShape shape_for(const Way& way, OpShape shape);

}  // namespace suites::oracle
