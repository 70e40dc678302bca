#include "suites/probes/launches.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace suites::probes {
namespace {

TEST(Launches, OperationsThatComputeAreCountedAndViewsAreNot) {
  const at::Tensor a = at::ones({4, 6}), b = at::ones({6, 4});
  const OpCount views = count_ops(at::kCPU, [&] {
    (void)a.transpose(0, 1).unsqueeze(0).narrow(1, 0, 2).reshape({2, 4});
    (void)a.view({24}).expand({3, 24});
    (void)a.contiguous();
    (void)a.to(at::kFloat);
    (void)a.detach();
    (void)at::empty({3});
  });
  EXPECT_EQ(views.ops, 0) << views.most_frequent().dump();
  const OpCount work = count_ops(at::kCPU, [&] { (void)(a.mm(b) + 1).relu_(); });
  EXPECT_EQ(work.ops, 3) << work.most_frequent().dump();
  EXPECT_EQ(work.by_op.at("aten::mm"), 1);
}

TEST(Launches, CompositeOperationsCountAsWhatTheyDo) {
  const at::Tensor x = at::ones({4, 6}), w = at::ones({5, 6});
  const OpCount count = count_ops(at::kCPU, [&] { (void)at::linear(x, w); });
  EXPECT_EQ(count.ops, 1) << count.most_frequent().dump();
}

TEST(Launches, TheBackwardPassIsCounted) {
  const at::Tensor x = at::ones({8}).requires_grad_();
  const at::Tensor y = (x * x).sum();
  EXPECT_GE(count_ops(at::kCPU, [&] { y.backward(); }).ops, 3);
}

TEST(Launches, ReadingAValueIsAWait) {
  const at::Tensor x = at::arange(10);
  const OpCount count = count_ops(at::kCPU, [&] {
    (void)x[3].item<std::int64_t>();
    (void)x.sum().item<std::int64_t>();
    (void)x.nonzero();
    (void)(x + 1);
  });
  EXPECT_EQ(count.host_syncs, 3);
  EXPECT_EQ(count.syncs_by_op.at("aten::_local_scalar_dense"), 2);
}

TEST(Launches, OnAGpuOnlyItsOwnTensorsWait) {
  const OpCount count = count_ops(at::Device(at::kCUDA, 0), [] { (void)at::ones({3}).sum().item<float>(); });
  EXPECT_EQ(count.host_syncs, 0) << "a tensor of the CPU";
}

TEST(Launches, AnExceptionEndsTheCountAndCountsDoNotNest) {
  EXPECT_THROW((void)count_ops(at::kCPU, [] { (void)at::ones({2, 3}).mm(at::ones({2, 3})); }), c10::Error);
  EXPECT_THROW((void)count_ops(at::kCPU, [] { (void)count_ops(at::kCPU, [] {}); }), std::logic_error);
  EXPECT_EQ(count_ops(at::kCPU, [] { (void)at::ones({2}).neg(); }).by_op.at("aten::neg"), 1);
}

TEST(Launches, ALoopOverRowsGrowsWithTheRowsAndWholeTensorCodeDoesNot) {
  const auto loop = [](std::int64_t rows) {
    return count_ops(at::kCPU, [rows] {
      const at::Tensor x = at::ones({rows, 4});
      for (std::int64_t i = 0; i < rows; ++i) (void)x.select(0, i).sum().item<float>();
    });
  };
  const auto whole = [](std::int64_t rows) {
    return count_ops(at::kCPU, [rows] { (void)at::ones({rows, 4}).sum(1); });
  };
  const Growth bad = growth_per_row(loop(16), loop(48), 32), good = growth_per_row(whole(16), whole(48), 32);
  EXPECT_GE(bad.ops_per_row, 1);
  EXPECT_DOUBLE_EQ(bad.syncs_per_row, 1);
  EXPECT_FALSE(bad.grown.empty());
  EXPECT_EQ(good.ops_per_row, 0);
  EXPECT_EQ(good.syncs_per_row, 0);
}

}  // namespace
}  // namespace suites::probes
