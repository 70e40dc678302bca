#include "suites/probes/fixed_order.hpp"

#include <ATen/Context.h>

namespace suites::probes {

FixedOrder::FixedOrder(bool wanted, Unfixed unfixed)
    : was_(at::globalContext().deterministicAlgorithms()),
      warned_(at::globalContext().deterministicAlgorithmsWarnOnly()),
      filled_(at::globalContext().deterministicFillUninitializedMemory()) {
  if (!wanted) return;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/unfixed == Unfixed::warned_about);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

FixedOrder::~FixedOrder() {
  at::globalContext().setDeterministicAlgorithms(was_, warned_);
  at::globalContext().setDeterministicFillUninitializedMemory(filled_);
}

}  // namespace suites::probes
