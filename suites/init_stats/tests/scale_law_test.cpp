#include "suites/init_stats/scale_law.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace suites::init_laws;

at::Generator generator(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }
const at::TensorOptions kWide = at::TensorOptions(at::kDouble);

double mean_square(const at::Tensor& t) { return t.square().mean().item<double>(); }

// Uniform weights in +-1/sqrt(fan_in), as a Linear draws them.
at::Tensor weights(std::int64_t out, std::int64_t in, at::Generator& g) {
  return (at::rand({out, in}, g, kWide) * 2 - 1) / std::sqrt(static_cast<double>(in));
}

TEST(ScaleLaw, LinearExpectationAndBoundsHoldOverManyDraws) {
  auto g = generator(1);
  const std::int64_t in = 24, out = 10;
  // Rows that point mostly in one direction: few degrees of freedom.
  const at::Tensor z = at::randn({40, in}, g, kWide) * 0.3 + at::randn({1, in}, g, kWide);
  const ScaleLaw law = linear_law(z, out, 1.0 / (3 * in));
  const double alarm = 1e-2;
  const ScaleBounds b = bounds(law, alarm, 0);
  double sum = 0, squares = 0;
  int below = 0, above = 0;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    const double value = mean_square(z.matmul(weights(out, in, g).t()));
    sum += value;
    squares += value * value;
    below += value < b.low;
    above += value > b.high;
  }
  const double mean = sum / kDraws, variance = squares / kDraws - mean * mean;
  EXPECT_NEAR(mean / law.expected, 1, 0.03);
  // The variance of a quadratic form of Gaussians is 2 E^2 / k; uniform entries have less.
  EXPECT_LT(variance, 2.1 * law.expected * law.expected / law.freedom);
  EXPECT_GT(variance, 1.0 * law.expected * law.expected / law.freedom);
  EXPECT_LE(below, alarm * kDraws);
  EXPECT_LE(above, alarm * kDraws);
}

TEST(ScaleLaw, ParametersOfTheOtherOrientationAreTheSame) {
  auto g = generator(2);
  const at::Tensor tall = at::randn({50, 8}, g, kWide), wide = at::randn({8, 50}, g, kWide);
  for (const auto& z : {tall, wide}) {
    const at::Tensor c = z.t().matmul(z) / static_cast<double>(z.size(0));
    const ScaleLaw law = linear_law(z, 5, 2.0);
    const double trace = c.trace().item<double>(), norm = c.norm().item<double>();
    EXPECT_NEAR(law.expected, 2 * trace, 1e-9 * trace);
    EXPECT_NEAR(law.freedom, 5 * trace * trace / (norm * norm), 1e-6);
  }
}

TEST(ScaleLaw, EqualPartsTogetherHaveAsManyTimesTheFreedom) {
  ScaleLaw one;
  one.expected = 0.3;
  one.freedom = 50;
  one.tail = 20;
  const ScaleLaw both = together({one, one});
  EXPECT_DOUBLE_EQ(both.expected, 0.3);
  EXPECT_DOUBLE_EQ(both.freedom, 100);
  EXPECT_DOUBLE_EQ(both.tail, 40);
}

TEST(ScaleLaw, DrawnRowsCountByTheirUse) {
  const ScaleLaw law = drawn_rows_law(at::tensor({1, 1, 0, 2}, at::kLong), 10);
  EXPECT_DOUBLE_EQ(law.expected, 1);
  EXPECT_DOUBLE_EQ(law.freedom, 10.0 * 16 / 6);
  EXPECT_DOUBLE_EQ(law.tail, 20);
}

TEST(ScaleLaw, SiluOfNormalsAgreesWithSampling) {
  auto g = generator(3);
  for (const double variance : {1.0 / 9, 1.0 / 3, 2.0}) {
    const at::Tensor h = at::randn({2000000}, g, kWide) * std::sqrt(variance);
    EXPECT_NEAR(silu_mean_square(variance) / mean_square(at::silu(h)), 1, 0.01) << variance;
  }
}

// Pooled turned keys: the closed form against keys that are really drawn, turned and pooled.
TEST(ScaleLaw, TurnedPoolAgreesWithSampling) {
  auto g = generator(4);
  nsa::ModelConfig model;
  model.dim = 12;
  model.d_k = 8;
  model.nsa.l = 8;
  model.nsa.d = 4;
  const std::int64_t S = 40;
  const at::Tensor n = normed(at::randn({S, model.dim}, g, kWide) + 0.7);  // correlated, so that the turning matters
  const at::Tensor frequency = at::pow(model.rope_base, at::arange(0, 8, 2, kWide) / -8.0);
  const at::Tensor angle = at::outer(at::arange(S, kWide), frequency);
  const at::Tensor turn = at::polar(at::ones_like(angle), angle);  // [S,4]
  double sum = 0;
  constexpr int kDraws = 3000;
  for (int i = 0; i < kDraws; ++i) {
    const at::Tensor k = n.matmul(weights(8, model.dim, g).t());
    const at::Tensor turned = at::view_as_real(at::view_as_complex(k.view({S, 4, 2})) * turn).flatten(1);
    sum += mean_square(block_means(turned, model.nsa));
  }
  const double expected = turned_pool_mean_square(n, model, 1.0) / static_cast<double>(3 * model.dim);
  EXPECT_NEAR(sum / kDraws / expected, 1, 0.03);
  const double plain = mean_square(block_means(n, model.nsa)) / 3;
  EXPECT_LT(expected, 0.9 * plain);  // keys that turn apart cancel
}

TEST(ScaleLaw, UniformAttentionOfAnEmptyRowIsZero) {
  const at::Tensor visible = at::tensor({0, 0, 1, 0, 1, 1}, at::kInt).view({3, 2}).to(at::kBool);
  const at::Tensor weight = uniform_attention(visible);
  EXPECT_TRUE(at::equal(weight, at::tensor({0.0, 0.0, 1.0, 0.0, 0.5, 0.5}, kWide).view({3, 2})));
}

}  // namespace
