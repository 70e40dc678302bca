#include "suites/parity/rounded_once.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "nsa/model/rope.hpp"
#include "suites/codes.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::parity_cases {
namespace {

class RoundedOnce : public testing::Test {
 protected:
  harness::Settings settings{{}};
  tests::RecordingContext context{settings};
  ModelParts parts = parts_of_product();
  // What was rounded more than once.
  std::vector<std::string> judge() {
    nsa::ModelConfig model;
    model.dim = 96;
    model.n_heads = 4;
    model.d_k = 32;
    judge_rounding(context, model, at::kCPU, parts);
    std::vector<std::string> found;
    for (const auto& finding : context.findings) found.push_back(finding.evidence.at("part"));
    return found;
  }
};

using Names = std::vector<std::string>;

TEST_F(RoundedOnce, ThePartsOfTheProductAre) { EXPECT_EQ(judge(), Names()); }

TEST_F(RoundedOnce, ANormInTheStorageTypeIsFound) {
  parts.norm = [](const at::Tensor& x, const at::Tensor& weight) {
    return x * at::rsqrt(x.square().mean({-1}, true) + 1e-6) * weight;
  };
  EXPECT_EQ(judge(), (Names{"RMSNorm", "the gradient of RMSNorm's input"}));
}

TEST_F(RoundedOnce, ARotationOfRoundedProductsIsFound) {
  parts.rotate = [](const at::Tensor& x, const at::Tensor& rotations) {
    const at::Tensor c = at::real(rotations).to(x.scalar_type()).view({1, x.size(1), 1, -1}),
                     s = at::imag(rotations).to(x.scalar_type()).view({1, x.size(1), 1, -1});
    const at::Tensor pairs = x.unflatten(3, {-1, 2}), a = pairs.select(4, 0), b = pairs.select(4, 1);
    return at::stack({a * c - b * s, a * s + b * c}, 4).flatten(3);
  };
  EXPECT_EQ(judge(), Names{"RoPE"});
}

}  // namespace
}  // namespace suites::parity_cases
