#include "suites/probes/finite_locator.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <limits>

#include "suites/codes.hpp"
#include "suites/probes/finite_check.hpp"
#include "suites/probes/tests/small_model.hpp"
#include "suites/subject.hpp"

namespace suites::probes {
namespace finite_locator_test {

using namespace small;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Puts `value` at [0, row, head, 0] of a tensor, with or without effect on its gradient.
at::Tensor put(const at::Tensor& t, std::int64_t row, std::int64_t head, double value) {
  at::Tensor mask = at::zeros(t.sizes(), at::TensorOptions(at::kBool));
  mask.select(0, 0).select(0, row).select(0, head).fill_(true);
  return at::where(mask, at::full({}, value, t.options()), t);
}

TEST(FiniteLocator, FindsNothingInAFiniteStep) {
  Instance instance = model_with(nullptr);
  EXPECT_TRUE(finite_step(*instance.model, tokens(), Pass::forward_and_backward).finite);
  EXPECT_FALSE(locate(*instance.model, tokens(), Pass::forward_and_backward).has_value());
}

TEST(FiniteLocator, NamesLayerBranchRowHeadAndOperationOfAForwardNan) {
  auto layer = std::make_shared<int>(0);
  Instance instance = model_with([layer](nsa::Ops ops, const nsa::Call&) {
    const bool second = (*layer)++ % 2 == 1;
    ops.replace(&nsa::Ops::attend_selected, [second, inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
      nsa::Attended out = inner(args);
      if (second) out.o = put(out.o, 17, 4, kNan);
      return out;
    });
    return ops;
  });
  const FiniteStep step = finite_step(*instance.model, tokens(), Pass::forward_and_backward);
  EXPECT_FALSE(step.finite);
  EXPECT_FALSE(step.forward_finite);
  const auto found = locate(*instance.model, tokens(), Pass::forward_and_backward);
  ASSERT_TRUE(found.has_value());
  EXPECT_FALSE(found->backward);
  EXPECT_EQ(found->stage.name, "layers.1.attention.sel.o");
  EXPECT_EQ(found->stage.layer, 1);
  EXPECT_EQ(found->stage.branch, "sel");
  EXPECT_EQ(found->row, 17);
  EXPECT_EQ(found->head, 4);
  EXPECT_EQ(found->rows, std::vector<std::int64_t>{17});
  EXPECT_EQ(found->allowed_keys, 2 * 8 + 2);  // blocks 0, 1, and the first two tokens of the third
  EXPECT_FALSE(found->only_empty_rows);
  EXPECT_EQ(found->value, "NaN");
  EXPECT_TRUE(found->op == "aten::fill_" || found->op == "aten::full") << found->op;
  EXPECT_EQ(code_of(*found), codes::kNonFiniteForward);
}

TEST(FiniteLocator, TellsRowsWithoutAKeyFromOthers) {
  const auto poison_rows = [](std::int64_t rows) {
    return [rows](nsa::Ops ops, const nsa::Call&) {
      ops.replace(&nsa::Ops::attend_compressed,
                  [rows, inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
                    nsa::Attended out = inner(args);
                    for (std::int64_t t = 0; t < rows; ++t) out.o = put(out.o, t, 0, kNan);
                    return out;
                  });
      return ops;
    };
  };
  Instance empty = model_with(poison_rows(7));  // l - 1
  const auto found = locate(*empty.model, tokens(), Pass::forward);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->stage.name, "layers.0.attention.cmp.o");
  EXPECT_EQ(found->rows.size(), 7U);
  EXPECT_EQ(found->allowed_keys, 0);
  EXPECT_EQ(code_of(*found), codes::kEmptyRowNan);

  Instance more = model_with(poison_rows(8));
  const auto beyond = locate(*more.model, tokens(), Pass::forward);
  ASSERT_TRUE(beyond.has_value());
  EXPECT_EQ(code_of(*beyond), codes::kNonFiniteForward);
}

TEST(FiniteLocator, NamesTheOperationOfABackwardNan) {
  // sqrt'(0) = inf and 0 * inf = NaN: the forward pass stays finite.
  Instance instance = model_with([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended out = inner(args);
      const at::Tensor nought = out.o * 0.0;
      out.o = out.o + at::sqrt(nought * nought) * 0.0;
      return out;
    });
    return ops;
  });
  const FiniteStep step = finite_step(*instance.model, tokens(), Pass::forward_and_backward);
  EXPECT_TRUE(step.forward_finite);
  EXPECT_FALSE(step.finite);
  EXPECT_FALSE(step.parameter.empty());
  const auto found = locate(*instance.model, tokens(), Pass::forward_and_backward);
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->backward);
  EXPECT_EQ(found->node, "SqrtBackward0");
  EXPECT_EQ(found->forward_op, "aten::sqrt");
  EXPECT_EQ(found->forward_stage, "layers.1.attention.win.o");
  EXPECT_EQ(code_of(*found), codes::kNonFiniteBackward);
}

TEST(FiniteLocator, TakesMinusInfinityForAMaskInsideAndAnErrorInAStage) {
  {
    FiniteLocator locator(RowMap{{}, 4, {}});
    const at::Tensor scores = at::zeros({1, 2, 4, 4}).masked_fill(at::ones({4, 4}, at::kBool).triu(1), -kInf);
    locator.observe("layers.0.attention.win.o", at::softmax(scores, -1));
    locator.observe("layers.0.attention.cmp.lse", at::full({1, 2, 4}, -kInf));
    EXPECT_FALSE(locator.first().has_value());
  }
  FiniteLocator locator(RowMap{{}, 4, {}});
  locator.observe("layers.0.attention.win.o", put(at::zeros({1, 4, 2, 3}), 2, 1, -kInf));
  const auto found = locator.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->value, "-Infinity");
  EXPECT_EQ(found->row, 2);
  EXPECT_EQ(found->head, 1);
}

TEST(FiniteLocator, BlamesTheMakerNotTheCarrier) {
  FiniteLocator locator(RowMap{{}, 3, {}});
  const at::Tensor x = at::tensor({1.0F, 0.0F, 2.0F}).view({1, 3, 1});
  locator.observe("embedding", x);
  const at::Tensor made = at::log(-x - 1.0);  // NaN here
  const at::Tensor carried = at::exp(made) + 1.0;
  locator.observe("layers.0", carried);
  const auto found = locator.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::log");
  EXPECT_EQ(found->stage.layer, 0);
  EXPECT_EQ(found->evidence()["operation"], "aten::log");
}

TEST(FiniteLocator, DoesNotBlameAPaddedLogSumExp) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU: only its fused kernels pad what they keep";
  // 41 queries in fp32 with a mask take the memory-efficient kernel, whose log-sum-exp is filled up with +inf.
  const auto options = at::TensorOptions(at::kFloat).device(at::kCUDA, 0);
  const at::Tensor q = at::randn({1, 2, kS, 16}, options).requires_grad_();
  const at::Tensor mask = at::ones({kS, kS}, options.dtype(at::kBool)).tril();
  FiniteLocator locator(RowMap{{}, kS, {}});
  const at::Tensor o = at::scaled_dot_product_attention(q, q, q, mask);
  locator.observe("layers.0", at::log(-o.abs() - 1.0));
  const auto found = locator.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::log");
}

TEST(FiniteLocator, AllowsOnlyOneAtATime) {
  const FiniteLocator locator(RowMap{{}, 4, {}});
  EXPECT_THROW(FiniteLocator(RowMap{{}, 4, {}}), std::logic_error);
}

}  // namespace finite_locator_test
}  // namespace suites::probes
