#include "nsa/train/adamw.hpp"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

namespace {

using nsa::train::AdamW;

std::vector<torch::Tensor> parameters(at::ScalarType dtype) {
  torch::manual_seed(3);
  std::vector<torch::Tensor> made;
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{7, 5}, {1}, {3, 1, 2}})
    made.push_back(torch::randn(shape, at::kDouble).to(dtype).requires_grad_());
  return made;
}

void set_gradients(const std::vector<torch::Tensor>& parameters, int step) {
  torch::manual_seed(100 + step);
  for (const auto& parameter : parameters)
    parameter.mutable_grad() = torch::randn(parameter.sizes(), at::kDouble).to(parameter.scalar_type());
}

// torch's own optimizer is the oracle.
void compare_with_torch(at::ScalarType dtype, double tolerance) {
  auto ours = parameters(dtype), theirs = parameters(dtype);
  AdamW optimizer(ours, 0.1);
  torch::optim::AdamW oracle(theirs, torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
  for (int step = 0; step < 25; ++step) {
    const double lr = 1e-2 / (step + 1);
    set_gradients(ours, step);
    set_gradients(theirs, step);
    static_cast<torch::optim::AdamWOptions&>(oracle.param_groups()[0].options()).lr(lr);
    optimizer.step(lr);
    oracle.step();
  }
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(ours[i], theirs[i], tolerance, tolerance)) << ours[i] << theirs[i];
}

TEST(AdamW, IsTorchsInFp64) { compare_with_torch(at::kDouble, 1e-12); }
TEST(AdamW, IsTorchsInFp32) { compare_with_torch(at::kFloat, 1e-5); }

TEST(AdamW, AParameterWithoutGradientIsLeftAlone) {
  auto all = parameters(at::kFloat);
  const torch::Tensor before = all[1].detach().clone();
  AdamW optimizer(all, 0.1);
  set_gradients(all, 0);
  all[1].mutable_grad().reset();
  optimizer.step(1e-2);
  EXPECT_TRUE(torch::equal(all[1].detach(), before));
  EXPECT_FALSE(torch::equal(all[0].detach(), parameters(at::kFloat)[0].detach()));
}

TEST(AdamW, NoGradientsNoUpdate) {
  auto all = parameters(at::kFloat);
  AdamW optimizer(all, 0.1);
  optimizer.step(1e-2);
  EXPECT_TRUE(torch::equal(all[0].detach(), parameters(at::kFloat)[0].detach()));
}

// Each update is far below half a step of bf16 at 1 (0.002); without the fp32 copy the weight would stay at 1.
TEST(AdamW, SmallUpdatesOfBf16AddUp) {
  torch::Tensor weight = torch::ones({4}, at::kBFloat16).requires_grad_();
  AdamW optimizer({weight}, 0.0);
  for (int step = 0; step < 1000; ++step) {
    weight.mutable_grad() = torch::ones({4}, at::kBFloat16);
    optimizer.step(2e-4);
  }
  EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
  EXPECT_NEAR(weight.detach()[0].item<float>(), 0.8F, 0.005F);  // 1000 steps of lr
}

}  // namespace
