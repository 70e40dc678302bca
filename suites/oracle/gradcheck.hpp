// Is a backward pass the derivative of its forward pass? For random cotangents u and random directions v, u^T J v is
// computed twice: by the backward pass, and by central differences of the forward pass. A direction is dense, so one
// wrong element anywhere shows; only then is the input walked element by element to name the worst one. fp64 only.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "harness/context.hpp"

namespace suites::oracle {

// Differentiable outputs of the inputs; other outputs do not belong here. May be empty tensors, never undefined.
using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct GradcheckOptions {
  int directions = 4;
  double step = 1e-5;
  double relative = 1e-6;  // of |numeric| + |analytic|
  double absolute = 1e-7;
  std::uint64_t seed = 1;
  std::int64_t search_limit = 512;  // elements looked at when naming the worst
};

struct GradcheckReport {
  bool good = true;
  std::size_t input = 0;             // of the first input that fails
  bool detached = false;             // no gradient reaches it at all, although the outputs depend on it
  std::vector<std::int64_t> index;   // of its worst element
  double numeric = 0, analytic = 0;  // there
  double worst_ratio = 0;            // over all directions: difference / allowed
};

// `inputs`: fp64, detached; they are not changed. `progress` is called between evaluations.
[[nodiscard]] GradcheckReport gradcheck(const Function& function, const std::vector<at::Tensor>& inputs,
                                        const GradcheckOptions& options, const std::function<void()>& progress = {});

}  // namespace suites::oracle
