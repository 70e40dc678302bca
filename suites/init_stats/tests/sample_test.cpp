#include "suites/init_stats/sample.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace suites::init_laws;
using Kind = Law::Kind;

const Law kUniform{Kind::uniform, 0.125, ""};
const Law kNormal{Kind::normal, 2.0, ""};
constexpr double kAlarm = 1e-12;
constexpr double kFp32 = 0x1p-24, kBf16 = 0x1p-8;

at::Tensor draw(const Law& law, std::int64_t n, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  if (law.kind == Kind::normal) return at::randn({n}, generator, at::kFloat) * law.scale;
  return (at::rand({n}, generator, at::kFloat) * 2 - 1) * law.scale;
}

std::vector<std::string> violated(const at::Tensor& t, const Law& law, double rounding = kFp32) {
  std::vector<std::string> names;
  for (const Bound& b : bounds(measure(t, law), law, kAlarm, rounding)) {
    if (!(b.value >= b.low && b.value <= b.high)) names.push_back(b.what);
  }
  return names;
}

TEST(Sample, StatisticsOfAKnownSample) {
  const Statistics s = measure(at::tensor({-0.125, -0.0625, 0.0625, 0.125}, at::kDouble), kUniform);
  EXPECT_EQ(s.n, 4);
  EXPECT_DOUBLE_EQ(s.mean, 0);
  EXPECT_DOUBLE_EQ(s.mean_square, (2 * 0.015625 + 2 * 0.00390625) / 4);
  EXPECT_DOUBLE_EQ(s.minimum, -0.125);
  // The distribution function at the four values is 0, 1/4, 3/4, 1; the sample's steps are 1/4 wide.
  EXPECT_DOUBLE_EQ(s.ks, 0.25);
}

TEST(Sample, LawsAreNeverAccusedInAnySize) {
  for (const Law& law : {kUniform, kNormal}) {
    for (const std::int64_t n : {1, 3, 8, 24, 100, 5000}) {
      for (std::uint64_t seed = 0; seed < 40; ++seed) {
        EXPECT_TRUE(violated(draw(law, n, seed), law).empty()) << n << " " << seed;
        const at::Tensor stored = draw(law, n, seed).to(at::kBFloat16);
        EXPECT_TRUE(violated(stored, law, kBf16).empty()) << "bf16 " << n << " " << seed;
      }
    }
  }
}

TEST(Sample, ScalingByATenthIsCaughtFromTheDetectableSize) {
  for (const double factor : {1.1, 0.9}) {
    for (const Law& law : {kUniform, kNormal}) {
      const std::int64_t n = detectable_size(law, factor, kAlarm, 1e-6);
      EXPECT_LT(n, law.kind == Kind::uniform ? 300 : 12000);
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        EXPECT_FALSE(violated(draw(law, n, seed) * factor, law).empty()) << factor << " " << n << " " << seed;
      }
    }
  }
}

TEST(Sample, AnotherShapeOrMeanIsCaught) {
  // A normal sample with the uniform law's deviation, a shifted one, and one that is half constant.
  const Law same_deviation{Kind::normal, kUniform.deviation(), ""};
  EXPECT_FALSE(violated(draw(same_deviation, 5000, 1), kUniform).empty());
  EXPECT_FALSE(violated(draw(kNormal, 5000, 1) + 0.5, kNormal).empty());
  at::Tensor frozen = draw(kUniform, 5000, 1);
  frozen.slice(0, 0, 2500).fill_(0.05);
  EXPECT_FALSE(violated(frozen, kUniform).empty());
}

// The right mean and deviation, but values that end too early: only the largest value tells in samples of this size.
TEST(Sample, ANormalLawWithoutItsTailsIsCaught) {
  const Law flat{Kind::uniform, 2.0 * std::sqrt(3.0), ""};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(violated(draw(flat, 500, seed), kNormal), std::vector<std::string>{"largest"}) << seed;
    const at::Tensor cut = draw(kNormal, 2000, seed).fmod(4.0);  // ends at two deviations
    EXPECT_FALSE(violated(cut, kNormal).empty()) << seed;
  }
}

TEST(Sample, ConstantsAreExact) {
  const Law ones{Kind::ones, 0, ""}, zeros{Kind::zeros, 0, ""};
  EXPECT_TRUE(violated(at::ones({5}), ones).empty());
  EXPECT_TRUE(violated(at::zeros({5}), zeros).empty());
  at::Tensor t = at::ones({5});
  t[3] = std::nextafterf(1, 2);
  EXPECT_FALSE(violated(t, ones).empty());
  EXPECT_FALSE(violated(at::full({1}, 1e-30), zeros).empty());
}

TEST(Sample, NanIsCaught) {
  at::Tensor t = draw(kUniform, 100, 3);
  t[7] = std::nan("");
  EXPECT_FALSE(violated(t, kUniform).empty());
}

TEST(Law, DistributionFunctions) {
  EXPECT_DOUBLE_EQ(kUniform.cdf(0), 0.5);
  EXPECT_DOUBLE_EQ(kUniform.cdf(1), 1);
  EXPECT_NEAR(kNormal.cdf(2.0), 0.8413447460685429, 1e-12);
  EXPECT_DOUBLE_EQ(kUniform.deviation(), 0.125 / std::sqrt(3.0));
}

}  // namespace
