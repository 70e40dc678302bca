// For tests that look for values that are not finite: a small model in which one function gives others.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

#include "suites/subject.hpp"

namespace suites::probes::small {

inline constexpr std::int64_t kS = 41;

inline nsa::ModelConfig small_model() {
  nsa::ModelConfig model;
  model.dim = 24;
  model.n_layers = 2;
  model.n_heads = 6;
  model.n_kv_groups = 3;
  model.d_k = 4;
  model.d_v = 4;
  model.vocab = 64;
  model.nsa = {.l = 8, .d = 4, .l_sel = 8, .n_sel = 3, .w = 9};
  return model;
}

using Change = std::function<nsa::Ops(nsa::Ops, const nsa::Call&)>;

// A model whose ops are changed; `change` is asked for every layer of every pass, so it counts the layers itself.
inline Instance model_with(const Change& change) {
  auto seams = std::make_shared<Seams>();
  if (change) seams->ops.push_back(change);
  return Subject(seams).model({.config = small_model(), .flags = {}, .seed = 5});
}

inline at::Tensor tokens() { return at::randint(0, 64, {1, kS + 1}, at::TensorOptions(at::kLong)); }

}  // namespace suites::probes::small
