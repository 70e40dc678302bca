// The table of functions of one way (suites/ways.hpp) for one case, as the product assembles it.
#pragma once

#include <string>

#include "suites/oracle/op_case.hpp"
#include "suites/subject.hpp"
#include "suites/ways.hpp"

namespace suites::oracle {

// Why the way's backend does not serve this case, in the words of its feature table; "" when it does, and of
// FlashAttention-2, which gets no other cases than those that it serves.
[[nodiscard]] std::string refusal(const Way& way, const OpShape& shape, nsa::Op op, at::ScalarType dtype,
                                  at::Device device);

// Skips the case where refusal() says something, or the implementation that is judged does not claim the call. Throws
// std::logic_error when the route of `op` is another one than the way's (Way::part), so that no comparison is made with
// something else than it claims.
[[nodiscard]] nsa::Ops ops_of(const Subject& subject, const Way& way, const OpShape& shape, nsa::Op op,
                              at::ScalarType dtype, at::Device device);

// FlashAttention-2 wants Dk = Dv, a multiple of 8; our own kernels want one of four pairs of widths; an implementation
// has limits that it tells (its geometry may be another, and then there are 2w + l' + 3 tokens of it).
[[nodiscard]] OpShape shape_for(const Subject& subject, const Way& way, OpShape shape);

// Whether this way gives gradients: an implementation says so itself.
[[nodiscard]] bool gives_gradients(const Subject& subject, const Way& way);

}  // namespace suites::oracle
