#include "suites/oracle/compare.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "suites/codes.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::oracle {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

at::Tensor of(std::initializer_list<double> values) { return at::tensor(std::vector<double>(values), at::kDouble); }

Verdict judged(const at::Tensor& value, const at::Tensor& reference, const at::Tensor& naive) {
  return judge({value, reference, naive}, budget(value.scalar_type(), 4));
}

// Every kind of value against every kind: good exactly on the diagonal.
TEST(Judge, TruthTableOfNonFiniteValues) {
  const std::vector<double> kinds = {1.0, kNan, kInf, -kInf};
  for (const double value : kinds) {
    for (const double wanted : kinds) {
      const bool same = value == wanted || (std::isnan(value) && std::isnan(wanted));
      const Verdict verdict = judged(of({2, value}), of({2, wanted}), of({2, wanted}));
      EXPECT_EQ(verdict.good(), same) << value << " against " << wanted;
      EXPECT_EQ(verdict.masks_agree, same) << value << " against " << wanted;
      if (!same) {
        EXPECT_EQ(verdict.index, std::vector<std::int64_t>{1});
      }
    }
  }
}

TEST(Judge, ANanInTheNaiveComputationBuysNothing) {
  EXPECT_FALSE(judged(of({2, 5}), of({2, 1}), of({2, kNan})).good());
}

TEST(Judge, BoundIsFactorTimesNaiveErrorPlusFloorBelowTheCeiling) {
  const at::Tensor reference = of({10, 1});
  const auto at_distance = [&](double error) { return (reference + of({0, error})).to(at::kFloat); };
  const at::Tensor naive = at_distance(1e-4);
  EXPECT_TRUE(judged(at_distance(3e-4), reference, naive).good());
  EXPECT_FALSE(judged(at_distance(5e-4), reference, naive).good());
  // 1e-3 of the largest value is the ceiling in fp32, whatever the naive computation did.
  EXPECT_FALSE(judged(at_distance(0.02), reference, at_distance(1)).good());
  const Verdict exact = judged(reference.to(at::kFloat), reference, reference.to(at::kFloat));
  EXPECT_TRUE(exact.good());
  EXPECT_GT(exact.bound, 0);
  EXPECT_EQ(exact.headroom(), 0);
}

TEST(Judge, FindsTheWorstIndex) {
  const at::Tensor reference = at::arange(24, at::kDouble).view({2, 3, 4});
  at::Tensor value = reference.clone();
  value[1][2][0] += 3;
  const Verdict verdict = judged(value, reference, reference);
  EXPECT_FALSE(verdict.good());
  EXPECT_EQ(verdict.index, (std::vector<std::int64_t>{1, 2, 0}));
  EXPECT_DOUBLE_EQ(verdict.error, 3);
}

TEST(Judge, AMissingOrMisshapenResultIsNoAgreement) {
  EXPECT_FALSE(judge({at::zeros({2, 3}, at::kDouble), at::zeros({3, 2}, at::kDouble), at::zeros({3, 2}, at::kDouble)},
                     budget(at::kDouble, 4))
                   .good());
  const Verdict missing = judge({at::Tensor(), of({1}), of({1})}, budget(at::kFloat, 4));
  EXPECT_FALSE(missing.good());
}

TEST(Judge, AcceptsEmptyTensorsAndAllZeros) {
  const at::Tensor nothing = at::zeros({2, 0, 3}, at::kDouble);
  EXPECT_TRUE(judged(nothing, nothing, nothing).good());
  EXPECT_TRUE(judged(of({0, 0}), of({0, 0}), of({0, 0})).good());
  EXPECT_FALSE(judged(of({0, 1e-300}), of({0, 0}), of({0, 0})).good());
}

TEST(ExpectGood, RaisesTheCodeThatFits) {
  const harness::Settings settings = tests::default_settings();
  const auto code = [&](const Verdict& verdict, bool gradient) {
    tests::RecordingContext context(settings);
    const bool good = expect_good(context, verdict, {"attend_window", "o", gradient});
    EXPECT_EQ(good, context.findings.empty());
    return context.findings.empty() ? "" : context.findings.front().code;
  };
  EXPECT_EQ(code(judged(of({1}), of({1}), of({1})), false), "");
  EXPECT_EQ(code(judged(of({1}), of({2}), of({2})), false), codes::kOutputBudget);
  EXPECT_EQ(code(judged(of({1}), of({2}), of({2})), true), codes::kGradientBudget);
  EXPECT_EQ(code(judged(of({kNan}), of({2}), of({2})), false), codes::kNonFiniteMask);
  EXPECT_EQ(code(judged(of({1, 1}), of({2}), of({2})), false), codes::kOutputContract);
  EXPECT_EQ(code(judge({at::Tensor(), of({2}), of({2})}, budget(at::kFloat, 4)), true), codes::kGraphBreak);
}

}  // namespace
}  // namespace suites::oracle
