#include "suites/probes/unwritten_memory.hpp"

#include <ATen/ATen.h>

#include <set>
#include <string>

namespace suites::probes {

StaleMemory::StaleMemory()
    : before_(at::globalContext().deterministicAlgorithms()),
      warned_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
}

StaleMemory::~StaleMemory() { at::globalContext().setDeterministicAlgorithms(before_, warned_); }

namespace {

void fill_with_zero(const at::RecordFunction& op, at::ObserverContext*) {
  static const std::set<std::string> kUnwritten = {"aten::empty", "aten::empty_like", "aten::empty_strided",
                                                   "aten::new_empty", "aten::new_empty_strided"};
  if (!kUnwritten.contains(op.name())) return;
  for (const c10::IValue& value : op.outputs()) {
    if (value.isTensor() && value.toTensor().defined()) value.toTensor().zero_();
  }
}

}  // namespace

ZeroMemory::ZeroMemory() : tap_(OpTap::Of::all_threads, nullptr, fill_with_zero, {.outputs = true}) {}

}  // namespace suites::probes
