// The model that is swept: the configured one with few layers, and its logits made larger or smaller.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "harness/context.hpp"
#include "suites/probes/finite_check.hpp"
#include "suites/subject.hpp"

namespace suites::s_sweep_cases {

struct SweptOptions {
  std::int64_t layers = 2;  // what a second layer sees has passed a first one; more add time, not kinds of rows
  nsa::Precision precision = nsa::Precision::fp32;
  nsa::EffectiveFlags flags;
  std::optional<nsa::Phi> phi = {};  // as configured
};
struct SweptModel {
  nsa::Config config;
  Instance instance;
  [[nodiscard]] nsa::LanguageModelImpl& model() { return *instance.model; }
};
[[nodiscard]] SweptModel swept_model(const harness::Context& context, const Subject& subject,
                                     const SweptOptions& options);

// While it lives, the queries that attention and selection see are multiplied, so that every branch's logits grow by
// `scale`. The gate, which reads the queries earlier, stays as it is.
class ScaledLogits {
 public:
  ScaledLogits(nsa::Runtime& runtime, double scale);
  ~ScaledLogits();
  ScaledLogits(const ScaledLogits&) = delete;
  ScaledLogits& operator=(const ScaledLogits&) = delete;

 private:
  nsa::Runtime& runtime_;
  nsa::OpsProvider before_;
};

}  // namespace suites::s_sweep_cases
