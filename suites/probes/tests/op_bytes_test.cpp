#include "suites/probes/op_bytes.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <stdexcept>

namespace suites::probes {
namespace {

constexpr std::int64_t kFloat = 4;

TEST(OpBytes, OneTensorOfKnownSize) {
  const OpBytes figures = measure_bytes([] { (void)at::empty({37, 101}, at::kFloat); });
  EXPECT_EQ(figures.allocated, 37 * 101 * kFloat);
  EXPECT_EQ(figures.peak, 37 * 101 * kFloat);
  EXPECT_EQ(figures.ops, 1);
  EXPECT_EQ(figures.by_op.at("aten::empty").calls, 1);
}

TEST(OpBytes, NothingIsCountedOutside) {
  const at::Tensor before = at::ones({1000});
  const OpBytes figures = measure_bytes([] {});
  const at::Tensor after = at::ones({1000});
  EXPECT_EQ(figures.allocated, 0);
  EXPECT_EQ(figures.ops, 0);
}

TEST(OpBytes, AllocatedSumsAndPeakIsWhatLivesAtOnce) {
  const OpBytes figures = measure_bytes([] {
    for (int i = 0; i < 3; ++i) (void)at::empty({256}, at::kFloat);  // freed each time
  });
  EXPECT_EQ(figures.allocated, 3 * 256 * kFloat);
  EXPECT_EQ(figures.peak, 256 * kFloat);
}

TEST(OpBytes, FreeingWhatWasThereBeforeDoesNotCount) {
  at::Tensor before = at::ones({4096});
  const OpBytes figures = measure_bytes([&] {
    before = at::Tensor();
    (void)at::empty({16}, at::kFloat);
  });
  EXPECT_EQ(figures.allocated, 16 * kFloat);
  EXPECT_EQ(figures.peak, 16 * kFloat);
}

TEST(OpBytes, ThePeakOfALaterPartCanBeTold) {
  OpBytesScope scope;
  const at::Tensor kept = at::empty({256}, at::kFloat);
  (void)at::empty({4096}, at::kFloat);
  EXPECT_EQ(scope.so_far().peak, (256 + 4096) * kFloat);
  scope.restart_peak();
  EXPECT_EQ(scope.so_far().peak, 256 * kFloat);
  (void)at::empty({512}, at::kFloat);
  EXPECT_EQ(scope.stop().peak, (256 + 512) * kFloat);
}

TEST(OpBytes, ViewsAreFreeAndCopiesAreNot) {
  const at::Tensor k = at::ones({2, 5, 1, 8});
  const OpBytes view = measure_bytes([&] { (void)k.expand({2, 5, 4, 8}); });
  EXPECT_EQ(view.allocated, 0);
  EXPECT_GE(view.ops, 1);
  const OpBytes copy = measure_bytes([&] { (void)k.expand({2, 5, 4, 8}).contiguous(); });
  EXPECT_EQ(copy.allocated, 2 * 5 * 4 * 8 * kFloat);
}

TEST(OpBytes, AllocationsBelongToTheOutermostOperation) {
  const at::Tensor a = at::ones({8, 8}), b = at::ones({8, 8});
  const OpBytes figures = measure_bytes([&] { (void)at::repeat_interleave(a, 3, 0); });
  EXPECT_GE(figures.by_op.at("aten::repeat_interleave").allocated, 3 * 64 * kFloat);
  EXPECT_EQ(figures.by_op.at("aten::repeat_interleave").calls, 1);
  EXPECT_EQ(figures.by_op.size(), 1U);
  EXPECT_GT(figures.ops, 1);
  EXPECT_EQ(figures.largest(1)[0]["op"], "aten::repeat_interleave");
}

TEST(OpBytes, TheBackwardPassIsSeenToo) {
  const at::Tensor x = at::ones({64}).requires_grad_();
  const at::Tensor y = (x * x).sum();
  const OpBytes figures = measure_bytes([&] { y.backward(); });
  EXPECT_GE(figures.allocated, 64 * kFloat);
}

TEST(OpBytes, ScopesEndOnceAndAfterAnException) {
  OpBytesScope scope;
  (void)at::empty({10}, at::kFloat);
  const std::int64_t first = scope.stop().allocated;
  (void)at::empty({10}, at::kFloat);
  EXPECT_EQ(scope.stop().allocated, first);
  EXPECT_THROW((void)measure_bytes([] { (void)at::ones({2, 3}).matmul(at::ones({2, 3})); }), c10::Error);
  const OpBytes after = measure_bytes([] { (void)at::empty({5}, at::kFloat); });
  EXPECT_EQ(after.by_op.at("aten::empty").allocated, 5 * kFloat);
}

TEST(OpBytes, ScopesDoNotNest) {
  OpBytesScope scope;
  EXPECT_THROW(OpBytesScope(), std::logic_error);
  (void)at::empty({6}, at::kFloat);
  EXPECT_EQ(scope.stop().allocated, 6 * kFloat);
}

TEST(OpBytes, CudaAllocationsAreSeen) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no usable GPU";
  const OpBytes figures = measure_bytes([] { (void)at::empty({1024, 1024}, at::device(at::kCUDA).dtype(at::kFloat)); });
  EXPECT_EQ(figures.allocated, 4 << 20);
}

}  // namespace
}  // namespace suites::probes
