#include "suites/oracle/op_case.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "nsa/reference/reference.hpp"
#include "suites/oracle/backends.hpp"

namespace suites::oracle {
namespace {

TEST(OpCase, SameSeedSameInputsRoundedToTheDtype) {
  const OpShape shape = tiny_shape();
  for (const nsa::Op op : nsa::kAllOps) {
    const OpCase a = make_op_case(op, shape, at::kDouble, at::kCPU, 7),
                 b = make_op_case(op, shape, at::kDouble, at::kCPU, 7);
    const OpCase narrow = make_op_case(op, shape, at::kBFloat16, at::kCPU, 7);
    ASSERT_EQ(a.inputs.size(), a.input_names.size());
    ASSERT_EQ(a.inputs.size(), a.input_rows.size());
    for (std::size_t i = 0; i < a.inputs.size(); ++i) {
      EXPECT_TRUE(at::equal(a.inputs[i], b.inputs[i]));
      EXPECT_TRUE(at::allclose(a.inputs[i], narrow.inputs[i].to(at::kDouble), 1e-2, 1e-2));
    }
    EXPECT_FALSE(at::equal(a.inputs[0], make_op_case(op, shape, at::kDouble, at::kCPU, 8).inputs[0]));
  }
}

TEST(OpCase, RunsUnderTheReferenceWithGradients) {
  for (const nsa::Op op : nsa::kAllOps) {
    for (const nsa::Phi phi : {nsa::Phi::avg, nsa::Phi::mlp}) {
      OpShape shape = tiny_shape();
      shape.phi = phi;
      const OpCase c = make_op_case(op, shape, at::kDouble, at::kCPU, 3);
      const bool gradients = c.differentiable_outputs > 0;
      const Evaluation result = evaluate(c, nsa::reference::ops(), {at::kDouble, gradients, 1});
      EXPECT_EQ(result.outputs.size(), c.output_names.size()) << c.name();
      EXPECT_EQ(result.requires_grad, gradients) << c.name();
      for (const at::Tensor& gradient : result.gradients) EXPECT_TRUE(gradient.defined()) << c.name();
    }
  }
}

// A pass back is linear in what comes back to it.
TEST(OpCase, WhatComesBackCanBeChanged) {
  const OpCase c = make_op_case(nsa::Op::compress, tiny_shape(), at::kDouble, at::kCPU, 3);
  const auto gradients = [&](const ChangeCotangent& change) {
    return evaluate(c, nsa::reference::ops(), {at::kDouble, true, 1}, change).gradients;
  };
  const auto whole = evaluate(c, nsa::reference::ops(), {at::kDouble, true, 1}).gradients;
  const auto k_alone = gradients([](std::size_t output, const at::Tensor& cotangent) {
    if (output == 1) cotangent.zero_();
  });
  EXPECT_TRUE(at::equal(k_alone.at(0), whole.at(0)));
  EXPECT_EQ(k_alone.at(1).abs().max().item<double>(), 0);
  const auto nothing = gradients([](std::size_t, const at::Tensor& cotangent) { cotangent.zero_(); });
  EXPECT_EQ(nothing.at(0).abs().max().item<double>(), 0);
}

TEST(RandomBlocks, AreLegalAndSometimesEmpty) {
  const OpShape shape = tiny_shape();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const at::Tensor blocks = random_blocks(shape, generator);
  EXPECT_EQ(blocks.sizes(), at::IntArrayRef({shape.B, shape.S, shape.G, shape.geometry.n_sel}));
  const at::Tensor current = at::arange(shape.S, at::kInt).floor_divide(shape.geometry.l_sel).view({1, -1, 1, 1});
  EXPECT_TRUE(blocks.le(current).all().item<bool>());
  EXPECT_TRUE(blocks.ge(-1).all().item<bool>());
  EXPECT_GT(blocks.lt(0).all(-1).sum().item<std::int64_t>(), 0);
}

TEST(DocumentOf, CutsTokensAndBlocks) {
  OpShape shape = tiny_shape();
  shape.B = 1;
  shape.S = 0 + 1 + 9 + 5;
  shape.cu_seqlens = at::tensor(std::vector<int>{0, 0, 1, 10, 15}, at::kInt);
  const OpCase packed = make_op_case(nsa::Op::attend_compressed, shape, at::kDouble, at::kCPU, 2);
  EXPECT_EQ(packed.inputs[1].size(1), 3 + 1);  // blocks of 4 every 2: 9 tokens have 3, 5 have 1
  const OpCase last = document_of(packed, 3);
  EXPECT_EQ(last.shape.S, 5);
  EXPECT_FALSE(last.shape.cu_seqlens.has_value());
  EXPECT_TRUE(at::equal(last.inputs[0], packed.inputs[0].slice(1, 10, 15)));
  EXPECT_TRUE(at::equal(last.inputs[1], packed.inputs[1].slice(1, 3, 4)));
}

TEST(Backends, RefuseToCompareAnotherRouteThanTheirName) {
  const Subject subject(std::make_shared<Seams>());
  OpShape huge = tiny_shape();
  huge.S = 1 << 22;  // gathering would not fit: the route takes the masked way
  EXPECT_THROW((void)ops_of(subject, way_named("sdpa"), huge, nsa::Op::attend_selected, at::kDouble, at::kCPU),
               std::logic_error);
  EXPECT_THROW(
      (void)ops_of(subject, way_named("flash_dense"), tiny_shape(), nsa::Op::attend_window, at::kBFloat16, at::kCPU),
      std::logic_error);
}

}  // namespace
}  // namespace suites::oracle
