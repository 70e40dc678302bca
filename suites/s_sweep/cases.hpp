// The cases of s_sweep. Each `plan_...` gives the cases of one kind; settings and the model's YAML are all that they
// look at (see harness/suite.hpp).
#pragma once

#include <string>
#include <vector>

#include "harness/suite.hpp"
#include "suites/s_sweep/design.hpp"
#include "suites/subject.hpp"

namespace suites::s_sweep_cases {

using Cases = std::vector<harness::Case>;

// What the planning of every kind needs.
struct Plan {
  Subject subject;
  nsa::Geometry geometry;
  const harness::Settings& settings;
};

// Smoke. length[S]: a training step at one length; logits[S,scale]: with scaled logits; length_pattern: which lengths
// are bad, and by what rule.
[[nodiscard]] Cases plan_lengths(const Plan& plan);

// Smoke, and alone, where an implementation is judged that is not ours. implementation[op].
[[nodiscard]] Cases plan_implementation(const Plan& plan);

// Standard. ops[backend,op]: the points of a covering design over length, content, scale, dtype, layout and widths.
[[nodiscard]] Cases plan_ops(const Plan& plan);
[[nodiscard]] Design op_design(const nsa::Geometry& geometry, const std::vector<double>& scales);
[[nodiscard]] const std::vector<std::string>& op_exclusions();  // what its points never hold together, in words

// Standard. model[way]: the same with a model of two layers, over length, scale, dtype, layout and compression.
[[nodiscard]] Cases plan_models(const Plan& plan);
[[nodiscard]] Design model_design(const nsa::Geometry& geometry, const std::vector<double>& scales);
[[nodiscard]] const std::vector<std::string>& model_exclusions();

// Standard. long[S,way]: one layer at lengths up to 65,536.
[[nodiscard]] Cases plan_long(const Plan& plan);

// Standard. watch_overhead: what the always-on watch costs in a training step.
[[nodiscard]] Cases plan_watch(const Plan& plan);

// Standard. coverage: what the designs hold.
[[nodiscard]] Cases plan_coverage(const Plan& plan);

}  // namespace suites::s_sweep_cases
