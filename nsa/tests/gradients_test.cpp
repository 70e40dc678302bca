#include "nsa/train/gradients.hpp"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
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

// The norm as a tensor: the same bits as from a number, also where 16 bits are rounded.
void expect_the_same_by_a_tensor(at::Device device) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (const double bound : {1e6, 0.7, 1e-3}) {
      auto plain = linear(dtype), silent = linear(dtype);
      torch::manual_seed(5);
      for (const auto& module : {plain, silent}) module.ptr()->to(device);
      for (std::size_t i = 0; i < 2; ++i) {
        plain->parameters()[i].mutable_grad() = torch::randn_like(plain->parameters()[i]);
        silent->parameters()[i].mutable_grad() = plain->parameters()[i].grad().clone();
      }
      const at::Tensor norm = global_norm(*silent);
      clip_to_norm(*plain, norm.item<double>(), bound);
      clip_to_norm(*silent, norm, bound);
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(torch::equal(plain->parameters()[i].grad(), silent->parameters()[i].grad())) << dtype << bound;
    }
}

TEST(Gradients, ClippingByATensorIsTheSame) { expect_the_same_by_a_tensor(at::kCPU); }

TEST(Gradients, ClippingByATensorIsTheSameOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  expect_the_same_by_a_tensor(at::kCUDA);
}

TEST(Gradients, ClippingByATensorLeavesWhatIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    auto module = linear(at::kBFloat16);
    module->weight.mutable_grad() = torch::full({2, 3}, 5.0, at::kBFloat16);
    module->bias.mutable_grad() = torch::full({2}, bad, at::kBFloat16);
    clip_to_norm(*module, global_norm(*module), 1.0);
    EXPECT_TRUE(torch::equal(module->weight.grad(), torch::full({2, 3}, 5.0, at::kBFloat16)));
    EXPECT_EQ(first_nonfinite_gradient(*module), "bias");
  }
}

}  // namespace
