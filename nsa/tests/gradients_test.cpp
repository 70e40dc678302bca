#include "nsa/train/gradients.hpp"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <limits>

namespace {

using namespace nsa::train;

// Two parameters, [2, 3] and [2].
torch::nn::Linear linear(at::ScalarType dtype = at::kFloat) {
  torch::nn::Linear module(3, 2);
  module->to(dtype);
  return module;
}

TEST(Gradients, NormByHand) {
  auto module = linear();
  module->weight.mutable_grad() = torch::full({2, 3}, 2.0F);  // sum of squares 24
  module->bias.mutable_grad() = torch::full({2}, 0.5F);       // 0.5
  EXPECT_NEAR(global_norm(*module).item<double>(), std::sqrt(24.5), 1e-6);
  module->bias.mutable_grad().reset();
  EXPECT_NEAR(global_norm(*module).item<double>(), std::sqrt(24.0), 1e-6);
}

TEST(Gradients, NormOfBf16IsComputedInFp32) {
  auto module = linear(at::kBFloat16);
  module->weight.mutable_grad() = torch::full({2, 3}, 1.0, at::kBFloat16);
  module->bias.mutable_grad() = torch::full({2}, 0.03125, at::kBFloat16);
  const auto norm = global_norm(*module);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_NEAR(norm.item<double>(), std::sqrt(6.001953125), 1e-6);  // bf16 itself would say 2.453125
  EXPECT_EQ(global_norm(*linear(at::kDouble)).item<double>(), 0.0);
}

TEST(Gradients, FirstNonfiniteIsTheFirstInOrder) {
  auto module = linear();
  EXPECT_EQ(first_nonfinite_gradient(*module), "");
  module->weight.mutable_grad() = torch::ones({2, 3});
  module->bias.mutable_grad() = torch::ones({2});
  EXPECT_EQ(first_nonfinite_gradient(*module), "");
  module->bias.mutable_grad()[1] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_nonfinite_gradient(*module), "bias");
  module->weight.mutable_grad()[1][2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(first_nonfinite_gradient(*module), "weight");
  EXPECT_TRUE(std::isnan(global_norm(*module).item<double>()));
}

TEST(Gradients, ClippingScalesOnlyAboveTheBound) {
  auto module = linear();
  module->weight.mutable_grad() = torch::full({2, 3}, 3.0F);
  module->bias.mutable_grad() = torch::full({2}, -4.0F);
  const double norm = global_norm(*module).item<double>();
  clip_to_norm(*module, norm, norm * 2);
  EXPECT_EQ(module->bias.grad()[0].item<float>(), -4.0F);
  clip_to_norm(*module, norm, 0.5);
  EXPECT_NEAR(global_norm(*module).item<double>(), 0.5, 1e-6);
  EXPECT_NEAR(module->bias.grad()[0].item<double>() / module->weight.grad()[0][0].item<double>(), -4.0 / 3.0, 1e-6);
}

}  // namespace
