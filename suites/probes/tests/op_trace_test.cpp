#include "suites/probes/op_trace.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace {

using suites::probes::OpTrace;

TEST(OpTrace, CountsWhatRanBySectionAndOverload) {
  const at::Tensor a = at::ones({3});
  const OpTrace trace;
  (void)a.add(a);
  {
    const OpTrace::Section outer("outer");
    (void)a.mul(a);
    {
      const OpTrace::Section inner("inner");
      (void)at::matmul(a, a);
    }
    (void)a.mul(a);
  }
  const auto seen = trace.by_section();
  EXPECT_EQ(seen.at("").at("aten::add.Tensor"), 1);
  EXPECT_EQ(seen.at("outer").at("aten::mul.Tensor"), 2);
  EXPECT_EQ(seen.at("inner").at("aten::matmul"), 1);
  EXPECT_FALSE(seen.at("outer").contains("aten::matmul"));
  EXPECT_EQ(trace.all().at("aten::mul.Tensor"), 2);
}

TEST(OpTrace, SeesNestedOperationsAndTheBackwardPass) {
  at::Tensor w = at::ones({2, 2});
  w.requires_grad_();
  const OpTrace trace;
  at::linear(at::ones({1, 2}), w).sum().backward();
  EXPECT_TRUE(trace.all().contains("aten::linear"));
  EXPECT_TRUE(trace.all().contains("aten::expand"));  // of sum's backward
}

TEST(OpTrace, SeesOtherThreadsAndNothingAfterItsEnd) {
  {
    const OpTrace trace;
    std::thread([] { (void)at::zeros({1}).neg(); }).join();
    EXPECT_EQ(trace.all().at("aten::neg"), 1);
  }
  const OpTrace next;
  EXPECT_TRUE(next.all().empty());
}

TEST(OpTrace, OneAtATime) {
  const OpTrace trace;
  EXPECT_THROW(OpTrace(), std::logic_error);
}

}  // namespace
