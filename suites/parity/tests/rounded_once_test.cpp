#include "suites/parity/rounded_once.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "nsa/dispatch.hpp"
#include "nsa/model/rope.hpp"
#include "suites/codes.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::parity_cases {
namespace {

class RoundedOnce : public testing::Test {
 protected:
  harness::Settings settings{{}};
  tests::RecordingContext context{settings};
  ModelParts parts = parts_of_product(nsa::backend_ops(nsa::Backend::sdpa));
  nsa::Geometry geometry = {.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32};
  // What was rounded more than once.
  std::vector<std::string> judge() {
    nsa::ModelConfig model;
    model.dim = 96;
    model.n_heads = 4;
    model.d_k = 32;
    model.d_v = 16;
    model.nsa = geometry;
    judge_rounding(context, model, /*tokens=*/61, at::kCPU, parts);
    std::vector<std::string> found;
    for (const auto& finding : context.findings) found.push_back(finding.evidence.at("part"));
    return found;
  }
};

using Names = std::vector<std::string>;

TEST_F(RoundedOnce, ThePartsOfTheProductAre) { EXPECT_EQ(judge(), Names()); }

// Their gradients are halves of halves, which round nothing.
TEST_F(RoundedOnce, BlocksSideBySideAre) {
  geometry.d = geometry.l;
  EXPECT_EQ(judge(), Names());
}

TEST_F(RoundedOnce, ANormInTheStorageTypeIsFound) {
  parts.norm = [](const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight) {
    const at::Tensor sum = delta.defined() ? x + delta : x;
    return nsa::Normed{sum, sum * at::rsqrt(sum.square().mean({-1}, true) + 1e-6) * weight};
  };
  EXPECT_EQ(judge(), (Names{"RMSNorm", "the gradient of the input of RMSNorm", "the gradient of the weight of RMSNorm",
                            "RMSNorm of small rows", "the gradient of the input of RMSNorm of small rows",
                            "the gradient of the weight of RMSNorm of small rows", "RMSNorm behind a sum",
                            "the gradient of the weight of RMSNorm behind a sum"}));
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

TEST_F(RoundedOnce, AGatedSumInTheStorageTypeIsFound) {
  parts.ops.replace(&nsa::Ops::combine, [combine = parts.ops.combine](const nsa::CombineArgs& args) {
    nsa::CombineArgs rounded = args;
    rounded.gates = args.gates.to(args.o_cmp.scalar_type());
    return combine(rounded);
  });
  EXPECT_EQ(judge(), (Names{"the gated sum of the branches", "the gradient of the gates",
                            "the gradient of branch 1 of the gated sum", "the gradient of branch 2 of the gated sum",
                            "the gradient of branch 3 of the gated sum"}));
}

TEST_F(RoundedOnce, AMeanOfRoundedSumsIsFound) {
  parts.ops.replace(&nsa::Ops::compress, [compress = parts.ops.compress](const nsa::CompressArgs& args) {
    nsa::Compressed pooled = compress(args);
    at::Tensor sum = at::zeros_like(pooled.v);
    for (std::int64_t i = 0; i < args.geometry.l; ++i)
      sum = sum + args.v.slice(1, i, i + args.v.size(1) - args.geometry.l + 1, args.geometry.d);
    pooled.v = sum / args.geometry.l;
    return pooled;
  });
  EXPECT_EQ(judge(), Names{"the mean of a block's values"});
}

// An input of a part whose gradient goes through `change`.
template <typename Change>
at::Tensor with_gradient(const at::Tensor& x, const Change& change) {
  const at::Tensor watched = x.view_as(x);
  watched.register_hook([change](const at::Tensor& gradient) { return change(gradient); });
  return watched;
}

TEST_F(RoundedOnce, ANormsGradientWithoutItsLastRowIsFound) {
  parts.norm = [norm = parts.norm](const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight) {
    nsa::Normed made = norm(x, delta, weight.detach());
    const at::Tensor through = with_gradient(at::ones_like(made.y) * weight, [](const at::Tensor& gradient) {
      at::Tensor less = gradient.clone();
      less.select(0, -1).select(0, -1).zero_();
      return less;
    });
    made.y = made.y + (through - through.detach()) * (made.y.detach() / weight.detach());
    return made;
  };
  EXPECT_EQ(judge(),
            (Names{"the gradient of the weight of RMSNorm", "the gradient of the weight of RMSNorm of small rows",
                   "the gradient of the weight of RMSNorm behind a sum"}));
}

TEST_F(RoundedOnce, AGateThatCountsEveryHeadsShareOnceMoreIsFound) {
  parts.project = [project = parts.project](nsa::NsaAttention& layer, const at::Tensor& x,
                                            const at::Tensor& rotations) {
    nsa::Projected p = project(layer, x, rotations);
    const nsa::Projected other =
        project(layer, with_gradient(x, [](const at::Tensor& gradient) { return gradient * 1.05; }), rotations);
    p.gates = other.gates;
    return p;
  };
  EXPECT_EQ(judge(), Names{"the gradient of input of the gate"});
}

TEST_F(RoundedOnce, AGateThatIsCutOffFromItsInputIsFound) {
  parts.project = [](nsa::NsaAttention& layer, const at::Tensor& x, const at::Tensor& rotations) {
    nsa::Projected made = layer->project(x, rotations);
    made.gates = layer->project(x.detach(), rotations).gates;
    return made;
  };
  EXPECT_EQ(judge(), Names{"the gradient of input of the gate"});
  EXPECT_EQ(context.findings.at(0).code, codes::kGraphBreak);
}

TEST_F(RoundedOnce, AKeyThatIsNotTurnedIsFound) {
  parts.project = [project = parts.project](nsa::NsaAttention& layer, const at::Tensor& x,
                                            const at::Tensor& rotations) {
    nsa::Projected p = project(layer, x, rotations);
    p.k_win = project(layer, x, at::ones_like(rotations)).k_win;
    return p;
  };
  EXPECT_EQ(judge(), (Names{"k_win of the projections, turned", "the gradient of the input of the projections"}));
}

TEST_F(RoundedOnce, AnotherActivationIsFound) {
  parts.mlp = [](nsa::Mlp& mlp, const at::Tensor& x) { return mlp->fc2(at::gelu(mlp->fc1(x))); };
  EXPECT_EQ(judge(), (Names{"the MLP", "the gradient of input of the MLP", "the gradient of fc1.weight of the MLP",
                            "the gradient of fc2.weight of the MLP"}));
}

TEST_F(RoundedOnce, AGradientThatIsOffByOnePercentIsFound) {
  parts.ops.replace(&nsa::Ops::attend_window, [window = parts.ops.attend_window](const nsa::AttendWindowArgs& args) {
    nsa::AttendWindowArgs watched = args;
    watched.q = args.q.view_as(args.q);
    watched.q.register_hook([](const at::Tensor& gradient) { return gradient * 1.01; });
    return window(watched);
  });
  EXPECT_EQ(judge(), Names{"the gradient of q of attend_window"});
}

}  // namespace
}  // namespace suites::parity_cases
