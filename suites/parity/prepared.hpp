// Models for parity: the subject's configuration cut down to a few layers, or a small one that differs from it in all
// that a configuration can choose; and the text that goes through them.
#pragma once

#include <string>

#include "harness/context.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/subject.hpp"

namespace suites::parity_cases {

struct Prepared {
  nsa::Config config;
  Instance instance;
  [[nodiscard]] nsa::LanguageModelImpl& model() { return *instance.model; }
};

// At most three layers of the subject's configuration.
[[nodiscard]] nsa::Config shallow(const harness::Context& context, const Subject& subject);
// As shallow() for "subject"; for "small" another: the geometry of tiny, three groups, Dk != Dv, learned
// compression, independent gates.
[[nodiscard]] nsa::Config named_config(const harness::Context& context, const Subject& subject,
                                       const std::string& name);

// The same case makes the same weights, whatever the flags.
[[nodiscard]] Prepared prepare(const harness::Context& context, const Subject& subject, const nsa::Config& config,
                               nsa::Precision precision, const nsa::EffectiveFlags& flags);

// 2w + l' + 3: longer than the window and than n blocks where the window is the longest thing.
[[nodiscard]] std::int64_t length_of(const nsa::Geometry& g);
[[nodiscard]] at::Tensor prompt(const harness::Context& context, const nsa::Config& config,
                                probes::TokenShape shape);  // [B,S]

[[nodiscard]] double rms(const at::Tensor& t);

}  // namespace suites::parity_cases
