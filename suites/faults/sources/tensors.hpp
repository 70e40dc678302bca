// The mutants of tensors: switch.hpp says what they are for.
#pragma once

#include <ATen/ATen.h>

#include "suites/faults/sources/switch.hpp"

namespace nsa::mutant {

inline at::Tensor detached(int number, at::Tensor x) { return on(number) ? x.detach() : x; }

inline at::Tensor shifted(int number, at::Tensor x) { return on(number) ? x + 1 : x; }
inline at::Tensor without_term(int number, at::Tensor x) { return on(number) ? at::zeros_like(x) : x; }
inline at::Tensor without_factor(int number, at::Tensor x) { return on(number) ? at::ones_like(x) : x; }

// Through bf16 and back: of whole numbers those beyond 256 suffer.
inline at::Tensor rounded(int number, at::Tensor x) {
  return on(number) && x.scalar_type() != at::kBool ? x.to(at::kBFloat16).to(x.scalar_type()) : x;
}

// The next narrower type to compute in.
inline at::ScalarType narrower(int number, at::ScalarType type) {
  if (!on(number)) return type;
  return type == at::kDouble ? at::kFloat : at::kBFloat16;
}

}  // namespace nsa::mutant
