// The suite on processes of this program: healthy ranks are left in peace.
#include <gtest/gtest.h>

#include "nsa/tests/needs_gloo.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace suites {
namespace {

TEST(Distributed, TwoHealthyRanksAreLeftInPeace) {
  NSA_NEEDS_GLOO();
  const harness::Settings settings = tests::default_settings(distributed);
  const harness::Suite suite = distributed(Subject(std::make_shared<Seams>()));
  const tests::RecordingContext context = tests::run_case(suite, "two_ranks", settings);
  EXPECT_TRUE(context.findings.empty()) << tests::listed(context);
  EXPECT_GE(context.checks, 14);
  EXPECT_GT(context.metrics.at("worst_gradient"), 0) << "sums in another order: nothing was compared";
}

}  // namespace
}  // namespace suites
