// The gradients of a model as a list of values that a later pass does not change, and how far two such lists are apart.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "nsa/model/lm.hpp"
#include "reports/json.hpp"

namespace suites::autograd_cases {

using Gradients = std::vector<std::pair<std::string, at::Tensor>>;  // by parameter; undefined where none arrived

[[nodiscard]] Gradients copy_gradients(const nsa::LanguageModelImpl& model);

struct Distance {
  double largest = 0;  // over parameters: max |a - b| / max |b|; NaN and a gradient on one side only count as infinite
  std::string parameter;  // where
  bool bit_equal = true;
  [[nodiscard]] reports::Json evidence() const;
};
[[nodiscard]] Distance distance(const Gradients& a, const Gradients& b);

// The rounding that a sum of few terms in another order may have, relative to its largest element: what is allowed on a
// GPU, where atomics add in an order that varies; on the CPU nothing is.
[[nodiscard]] double repeat_tolerance(const at::Tensor& parameter);

}  // namespace suites::autograd_cases
