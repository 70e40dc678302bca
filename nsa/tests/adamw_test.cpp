#include "nsa/train/adamw.hpp"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <limits>
#include <set>

namespace {

using nsa::train::AdamW;

std::vector<torch::Tensor> parameters(at::ScalarType dtype, at::Device device = at::kCPU) {
  torch::manual_seed(3);
  std::vector<torch::Tensor> made;
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{7, 5}, {1}, {3, 1, 2}})
    made.push_back(torch::randn(shape, at::kDouble).to(device, dtype).requires_grad_());
  return made;
}

void set_gradients(const std::vector<torch::Tensor>& parameters, int step) {
  torch::manual_seed(100 + step);
  for (const auto& parameter : parameters)
    parameter.mutable_grad() = torch::randn(parameter.sizes(), at::kDouble).to(parameter.options());
}

// torch's own optimizer is the oracle.
void compare_with_torch(at::ScalarType dtype, double tolerance, bool master_weights = true) {
  auto ours = parameters(dtype), theirs = parameters(dtype);
  AdamW optimizer(ours, 0.1, master_weights);
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

TEST(AdamW, AGradientOfAnotherShapeIsRefusedBeforeAnythingChanges) {
  auto all = parameters(at::kFloat);
  AdamW optimizer(all, 0.1);
  set_gradients(all, 0);
  all[2].mutable_grad() = torch::zeros({1}, at::kDouble);
  std::string what;
  try {
    optimizer.step(1e-2);
  } catch (const std::invalid_argument& error) {
    what = error.what();
  }
  EXPECT_EQ(what, "optimizer: the gradient of 2 is Double [1] on cpu, the parameter is Float [3, 1, 2] on cpu");
  EXPECT_TRUE(torch::equal(all[0].detach(), parameters(at::kFloat)[0].detach()));
  EXPECT_EQ(optimizer.state().at("step/0").item<float>(), 0.0F);
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

// With 16-bit weights alone each of them is rounded away.
TEST(AdamW, WithoutMasterWeightsSmallUpdatesAreLost) {
  torch::Tensor weight = torch::ones({4}, at::kBFloat16).requires_grad_();
  AdamW optimizer({weight}, 0.0, /*master_weights=*/false);
  for (int step = 0; step < 100; ++step) {
    weight.mutable_grad() = torch::ones({4}, at::kBFloat16);
    optimizer.step(2e-4);
  }
  EXPECT_EQ(weight.detach()[0].item<float>(), 1.0F);
  EXPECT_EQ(optimizer.state().at("exp_avg/0").scalar_type(), at::kBFloat16);
  EXPECT_FALSE(optimizer.state().contains("master/0"));
}

TEST(AdamW, WithoutMasterWeightsItIsTorchsInBf16) { compare_with_torch(at::kBFloat16, 0.05, false); }

std::set<std::string> keys(const AdamW::State& state) {
  std::set<std::string> found;
  for (const auto& [name, tensor] : state) found.insert(name);
  return found;
}

TEST(AdamW, TheStateHasTheNamesOfTheParameters) {
  torch::nn::Linear linear(2, 3);
  const std::set<std::string> plain{"exp_avg/weight", "exp_avg_sq/weight", "step/weight",
                                    "exp_avg/bias",   "exp_avg_sq/bias",   "step/bias"};
  EXPECT_EQ(keys(AdamW(*linear, 0.1, true, nullptr).state()), plain);
  linear->to(at::kBFloat16);
  auto with_masters = plain;
  with_masters.insert({"master/weight", "master/bias"});
  EXPECT_EQ(keys(AdamW(*linear, 0.1, true, nullptr).state()), with_masters);
  EXPECT_EQ(keys(AdamW(*linear, 0.1, false, nullptr).state()), plain);
}

AdamW::State copy(const AdamW::State& state) {
  AdamW::State copied;
  for (const auto& [name, tensor] : state) copied[name] = tensor.clone();
  return copied;
}

bool same_bits(const AdamW::State& a, const AdamW::State& b) {
  return keys(a) == keys(b) && std::all_of(a.begin(), a.end(), [&](const auto& entry) {
           return torch::equal(entry.second, b.at(entry.first));
         });
}

// Three steps, a break, four more: against seven without a break. The second parameter gets its first gradient late, so
// that the counts of updates differ.
void expect_resume_to_the_same_bits(at::ScalarType dtype, bool master_weights, at::Device device = at::kCPU) {
  const auto steps = [](AdamW& optimizer, const std::vector<torch::Tensor>& weights, int from, int to) {
    for (int step = from; step < to; ++step) {
      set_gradients(weights, step);
      if (step < 2) weights[1].mutable_grad().reset();
      optimizer.step(1e-2 / (step + 1));
    }
  };
  auto whole = parameters(dtype, device), broken = parameters(dtype, device);
  AdamW uninterrupted(whole, 0.1, master_weights), before(broken, 0.1, master_weights);
  steps(uninterrupted, whole, 0, 7);
  steps(before, broken, 0, 3);
  const auto saved = copy(before.state());
  EXPECT_EQ(saved.at("step/0").item<float>(), 3.0F);
  EXPECT_EQ(saved.at("step/1").item<float>(), 1.0F);

  std::vector<torch::Tensor> resumed;
  for (const auto& weight : broken) resumed.push_back(weight.detach().clone().requires_grad_());
  AdamW after(resumed, 0.1, master_weights);
  after.load(saved);
  EXPECT_TRUE(same_bits(after.state(), saved));
  steps(after, resumed, 3, 7);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::equal(resumed[i], whole[i])) << i;
  EXPECT_TRUE(same_bits(after.state(), uninterrupted.state()));

  // Without the state it would not be the same: the test can fail.
  std::vector<torch::Tensor> forgetful;
  for (const auto& weight : broken) forgetful.push_back(weight.detach().clone().requires_grad_());
  AdamW anew(forgetful, 0.1, master_weights);
  steps(anew, forgetful, 3, 7);
  EXPECT_FALSE(torch::equal(forgetful[0], whole[0]));
}

TEST(AdamW, ResumesToTheSameBits) {
  expect_resume_to_the_same_bits(at::kFloat, true);
  expect_resume_to_the_same_bits(at::kDouble, true);
  expect_resume_to_the_same_bits(at::kBFloat16, true);
  expect_resume_to_the_same_bits(at::kBFloat16, false);
}

TEST(AdamW, ResumesToTheSameBitsOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  expect_resume_to_the_same_bits(at::kFloat, true, at::kCUDA);
  expect_resume_to_the_same_bits(at::kBFloat16, true, at::kCUDA);
  expect_resume_to_the_same_bits(at::kBFloat16, false, at::kCUDA);
}

// The numbers of an update as tensors: the same bits; and a skipped update leaves all as it was.
TEST(AdamW, WithoutAWordFromTheHostItIsTheSame) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16})
    for (const bool master_weights : {true, false}) {
      auto plain = parameters(dtype), silent = parameters(dtype);
      AdamW expected(plain, 0.1, master_weights), optimizer(silent, 0.1, master_weights);
      const at::Tensor lr = torch::zeros({}, at::kDouble), skip = torch::zeros({});
      for (int step = 0; step < 7; ++step) {
        if (step == 4) {
          const auto before = copy(optimizer.state());
          const at::Tensor weight = silent[0].detach().clone();
          set_gradients(silent, 99);
          silent[1].mutable_grad().fill_(std::numeric_limits<double>::quiet_NaN());
          optimizer.step(lr, skip + 1);
          EXPECT_TRUE(same_bits(optimizer.state(), before));
          EXPECT_TRUE(torch::equal(silent[0].detach(), weight));
        }
        set_gradients(plain, step);
        set_gradients(silent, step);
        lr.fill_(1e-2 / (step + 1));
        expected.step(1e-2 / (step + 1));
        optimizer.step(lr, skip);
      }
      EXPECT_TRUE(same_bits(optimizer.state(), expected.state()));
      for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], silent[i])) << i;
    }
}

TEST(AdamW, WithoutAWordFromTheHostItIsTheSameOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    auto plain = parameters(dtype, at::kCUDA), silent = parameters(dtype, at::kCUDA);
    AdamW expected(plain, 0.1), optimizer(silent, 0.1);
    const at::Tensor skip = torch::zeros({}, at::kCUDA);
    for (int step = 0; step < 5; ++step) {
      set_gradients(plain, step);
      set_gradients(silent, step);
      expected.step(1e-2 / (step + 1));
      optimizer.step(torch::full({}, 1e-2 / (step + 1), at::TensorOptions(at::kCUDA).dtype(at::kFloat)), skip);
    }
    EXPECT_TRUE(same_bits(optimizer.state(), expected.state()));
    const auto before = copy(optimizer.state());
    optimizer.step(torch::ones({}, at::kCUDA), skip + 1);
    EXPECT_TRUE(same_bits(optimizer.state(), before));
  }
}

TEST(AdamW, AStateThatDoesNotFitIsNamedAndChangesNothing) {
  auto weights = parameters(at::kFloat);
  AdamW optimizer(weights, 0.1);
  set_gradients(weights, 0);
  optimizer.step(1e-2);
  const auto before = copy(optimizer.state());
  auto given = copy(optimizer.state());
  given.erase("step/2");
  given["exp_avg/0"] = torch::zeros({5, 7});
  given["exp_avg/1"] = torch::ones({1}, at::kDouble);
  given["exp_avg_sq/1"] = torch::ones({1});  // would fit
  given["exp_avg_sq/2"] = torch::Tensor();
  given["master/0"] = torch::zeros({7, 5});
  std::string what;
  try {
    optimizer.load(given);
  } catch (const std::invalid_argument& error) {
    what = error.what();
  }
  EXPECT_EQ(what,
            "optimizer state: exp_avg/0 is Float [5, 7], here it is Float [7, 5]; exp_avg/1 is Double [1], here it is "
            "Float [1]; exp_avg_sq/2 is undefined, here it is Float [3, 1, 2]; step/2 is missing; master/0 is unknown "
            "here");
  EXPECT_TRUE(same_bits(optimizer.state(), before));
}

}  // namespace
