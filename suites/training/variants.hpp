// Telling causes apart: the same few steps with one thing changed at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/context.hpp"
#include "nsa/train/trainer.hpp"
#include "suites/training/run.hpp"

namespace suites::training_cases {

struct Variant {
  std::string name;     // "synthetic data"
  std::string cleared;  // what is not the cause when this one fails like the rest: "the data"
  std::function<void(RunPlan&)> change;
};
// The configuration in use first, then each change of it that this device can make.
[[nodiscard]] std::vector<Variant> variants_of(const RunPlan& base);

struct VariantResult {
  Variant variant;
  std::vector<nsa::train::StepReport> steps;  // the last may be a stop
  [[nodiscard]] bool finite() const;
};
// When the first (the configuration in use) fails: which changes cure it, and which causes are ruled out because the
// failure stays. When it does not: the changes that fail by themselves. Codes as for any stop.
void judge_variants(const std::vector<VariantResult>& results, harness::Context& context);

}  // namespace suites::training_cases
