// What the checks that run the model share: independent tokens, because laws about sizes are sharpest on them.
#pragma once

#include <ATen/core/Tensor.h>

#include "harness/context.hpp"
#include "suites/subject.hpp"

namespace suites::init_checks {

// Chance that a correct model is accused, over all bounds of a check together.
inline constexpr double kFalseAlarm = 1e-9;

// Relative error of storing a value.
[[nodiscard]] double rounding_of(nsa::Precision precision);

// [1, S + extra] uniform tokens on the model's device; S is long enough that every branch leaves something out.
[[nodiscard]] at::Tensor random_tokens(const harness::Context& context, const ModelOptions& options,
                                       std::int64_t extra = 0, int trial = 0);

}  // namespace suites::init_checks
