// The calls that nsa-bench times, on the CPU with sdpa: that they fit together. What they compute is
// other tests' matter.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "nsa/bench/call.hpp"

namespace nsa::bench {
namespace {

constexpr std::int64_t kTokens = 200;  // more blocks than are chosen

CallSpec spec_of(const Subject& subject, const std::string& config, Mode mode) {
  CallSpec spec{subject, problem(config, kTokens), Backend::sdpa, mode, ChoiceKind::random};
  spec.problem.geometry = {.l = 4, .d = 2, .l_sel = 8, .n_sel = 5, .w = 6};
  return spec;
}

// An input that a call does not use would make autograd throw.
TEST(BenchCall, EverySubjectRunsInBothModes) {
  for (const std::string config : {"a", "b"})
    for (const Subject& subject : subjects())
      for (const Mode mode : {Mode::fwd, Mode::fwd_bwd}) {
        if (mode == Mode::fwd_bwd && !subject.differentiable) continue;
        const auto call = make_call(spec_of(subject, config, mode), at::kCPU);
        EXPECT_NO_THROW(call()) << subject.name << " " << config << " " << to_string(mode);
        EXPECT_NO_THROW(call()) << "a second time";
      }
}

TEST(BenchCall, ASubjectThatNobodyKnowsIsRefused) {
  Subject unknown;
  unknown.name = "projection";
  EXPECT_THROW((void)make_call(spec_of(unknown, "a", Mode::fwd), at::kCPU), std::logic_error);
}

}  // namespace
}  // namespace nsa::bench
