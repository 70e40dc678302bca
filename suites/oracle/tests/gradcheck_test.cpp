#include "suites/oracle/gradcheck.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>

namespace suites::oracle {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<at::Tensor> inputs() {
  return {at::linspace(-1, 1, 15, at::kDouble).view({3, 5}), at::linspace(0.5, 2, 10, at::kDouble).view({5, 2})};
}

TEST(Gradcheck, PassesWhatIsRight) {
  const auto report = gradcheck(
      [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        return {at::softmax(at::matmul(in[0], in[1]), -1), at::exp(in[0])};
      },
      inputs(), {});
  EXPECT_TRUE(report.good);
  EXPECT_LT(report.worst_ratio, 1);
}

// exp with a derivative that is wrong in one single element.
struct WrongExp : torch::autograd::Function<WrongExp> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    const at::Tensor y = at::exp(x);
    context->save_for_backward({y});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    at::Tensor gradient = gradients[0] * context->get_saved_variables()[0];
    gradient[1][3] *= 1.01;
    return {gradient};
  }
};

TEST(Gradcheck, NamesInputAndElementOfAWrongDerivative) {
  const auto report = gradcheck(
      [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        return {at::matmul(WrongExp::apply(in[1]).t(), in[0].t())};
      },
      {inputs()[0], at::linspace(-1, 1, 20, at::kDouble).view({5, 4})}, {});
  EXPECT_FALSE(report.good);
  EXPECT_EQ(report.input, 1U);
  EXPECT_FALSE(report.detached);
  EXPECT_EQ(report.index, (std::vector<std::int64_t>{1, 3}));
  EXPECT_NEAR(report.analytic, 1.01 * report.numeric, 1e-6 * std::abs(report.numeric));
}

TEST(Gradcheck, SeesAnInputThatIsDetached) {
  const auto report = gradcheck(
      [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> { return {at::matmul(in[0], in[1].detach())}; },
      inputs(), {});
  EXPECT_FALSE(report.good);
  EXPECT_TRUE(report.detached);
  EXPECT_EQ(report.input, 1U);
}

TEST(Gradcheck, AcceptsAnInputThatNothingDependsOn) {
  const auto report =
      gradcheck([](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> { return {in[0] * 2}; }, inputs(), {});
  EXPECT_TRUE(report.good);
}

struct NanGradient : torch::autograd::Function<NanGradient> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {gradients[0] * std::numeric_limits<double>::quiet_NaN()};
  }
};

TEST(Gradcheck, ANanGradientNeverPasses) {
  const auto report = gradcheck(
      [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> { return {NanGradient::apply(in[0])}; },
      inputs(), {});
  EXPECT_FALSE(report.good);
  EXPECT_TRUE(std::isnan(report.worst_ratio));
}

TEST(Gradcheck, RefusesAnythingButFp64) {
  EXPECT_THROW((void)gradcheck([](const std::vector<at::Tensor>& in) { return in; }, {at::zeros({2})}, {}),
               std::invalid_argument);
}

}  // namespace
}  // namespace suites::oracle
