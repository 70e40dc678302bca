#include "suites/init_stats/sign_runs.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

namespace sign_runs_test {

using suites::init_laws::SignRuns;

at::Tensor draw(std::int64_t n, std::uint64_t seed) {
  return at::rand({n}, at::make_generator<at::CPUGeneratorImpl>(seed), at::TensorOptions(at::kFloat)) * 2 - 1;
}

TEST(SignRuns, IndependentStreamsShareNothing) {
  SignRuns runs;
  for (std::uint64_t seed = 0; seed < 8; ++seed) runs.add(std::to_string(seed), draw(20000, seed));
  EXPECT_TRUE(runs.repeats().empty());
  EXPECT_EQ(runs.values(), 160000);
}

TEST(SignRuns, ACopyAtAnyScaleAndOffsetIsFound) {
  const at::Tensor stream = draw(4000, 1);
  for (const double factor : {1.0, 0.125, -3.0}) {
    for (const std::int64_t shift : {0, 1, 77, 1000}) {
      SignRuns runs;
      runs.add("first", draw(500, 2));
      runs.add("a", stream);
      runs.add("b", at::cat({draw(shift, 3), stream.slice(0, 0, 700) * factor, draw(99, 4)}));
      const auto found = runs.repeats();
      ASSERT_EQ(found.size(), 1U) << factor << " " << shift;
      EXPECT_EQ(found[0].first, "a");
      EXPECT_EQ(found[0].second, "b");
      EXPECT_EQ(found[0].inverted, factor < 0);
      EXPECT_EQ(found[0].second_offset - found[0].first_offset, shift);
      EXPECT_GE(found[0].runs, 4);
    }
  }
}

TEST(SignRuns, AStretchOfTwoRunsIsLongEnough) {
  const at::Tensor stream = draw(4000, 5);
  for (std::int64_t begin = 0; begin < 300; begin += 37) {
    SignRuns runs;
    runs.add("a", stream);
    runs.add("b", at::cat({draw(50, 6), stream.slice(0, begin, begin + 2 * SignRuns::kRun), draw(300, 7)}));
    EXPECT_EQ(runs.repeats().size(), 1U) << begin;
  }
}

TEST(SignRuns, ARepeatInsideOneParameterIsFound) {
  const at::Tensor rows = draw(600, 8);
  SignRuns runs;
  runs.add("twice", at::cat({rows, draw(123, 9), rows}));
  const auto found = runs.repeats();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].first, "twice");
  EXPECT_EQ(found[0].second, "twice");
}

TEST(SignRuns, ConstantsAndShortParametersSayNothing) {
  SignRuns runs;
  runs.add("zeros", at::zeros({1000}));
  runs.add("other zeros", at::zeros({1000}));
  runs.add("negative", -at::ones({1000}));
  runs.add("short", draw(100, 10));
  runs.add("short again", draw(100, 10));
  EXPECT_TRUE(runs.repeats().empty());
}

TEST(SignRuns, Bf16KeepsTheSigns) {
  SignRuns runs;
  runs.add("fp32", draw(1000, 11));
  runs.add("bf16", (draw(1000, 11) * 0.02).to(at::kBFloat16));
  EXPECT_EQ(runs.repeats().size(), 1U);
}

}  // namespace sign_runs_test
