// For tests: a run of one layer with two groups of two heads of `width`, 35 tokens, every branch with something to do.
#pragma once

#include <cstdint>

#include "suites/flag_matrix/execution.hpp"

namespace suites::flag_execution {

inline Plan tiny_plan(std::int64_t dim = 32, std::int64_t width = 8) {
  Plan plan;
  plan.model.dim = dim;
  plan.model.n_layers = 1;
  plan.model.n_heads = 4;
  plan.model.n_kv_groups = 2;
  plan.model.d_k = plan.model.d_v = width;
  plan.model.nsa = {.l = 8, .d = 4, .l_sel = 16, .n_sel = 3, .w = 16};
  plan.S = 35;
  plan.seed = 5;
  return plan;
}

}  // namespace suites::flag_execution
