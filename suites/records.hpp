// What every case leaves on record besides what it says itself.
#pragma once

#include "harness/suite.hpp"
#include "suites/subject.hpp"

namespace suites {

// The suite with cases that tell, when they end (by an exception too), which functions of the product really ran in the
// models and tables that they made: the fact "routes", a row {op, backend, variant, why, calls, kernels} each. Where
// NSA_STRICT_ASSERTS replaced an output that was not finite by the reference's, that is a finding (kStrictFallback): a
// number that the reference computed says nothing of the function that trains. A backward pass that autograd refuses
// because something was written in place is that finding (kInplaceWrite) in every case, and no exception of the case.
[[nodiscard]] harness::Suite recorded(harness::Suite suite, const Subject& subject);

}  // namespace suites
