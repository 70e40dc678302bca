#include "suites/probes/gpu_trace.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <stdexcept>

namespace suites::probes {
namespace {

using Kind = GpuActivity::Kind;
constexpr std::uint64_t kMs = 1'000'000;

GpuActivity activity(Kind kind, std::uint64_t begin_ms, std::uint64_t end_ms, std::string name = "x") {
  return {kind, std::move(name), begin_ms * kMs, end_ms * kMs};
}

TEST(GpuTrace, BusyTimeIsTheUnionAndIdleTimeIsTheHostsUnlessItWaits) {
  const GpuTrace trace = analyse({
      activity(Kind::launch, 0, 1),
      activity(Kind::kernel, 10, 30, "gemm"),
      activity(Kind::kernel, 20, 40, "gemm"),  // overlaps: two streams
      activity(Kind::copy, 60, 70),
      activity(Kind::kernel, 90, 100, "softmax"),
      activity(Kind::wait, 75, 100, "cudaStreamSynchronize"),
      activity(Kind::allocation, 2, 3, "cudaMalloc"),
  });
  EXPECT_TRUE(trace.why_not.empty());
  EXPECT_EQ(trace.kernels, 3);
  EXPECT_EQ(trace.copies, 1);
  EXPECT_EQ(trace.launches, 1);
  EXPECT_EQ(trace.host_waits, 1);
  EXPECT_EQ(trace.allocations, 1);
  EXPECT_NEAR(trace.window_s, 0.1, 1e-12);
  EXPECT_NEAR(trace.busy_s, 0.030 + 0.010 + 0.010, 1e-12);
  // Idle: 0-10, 40-60, 70-75 (the host works) and 75-90 (it waits).
  EXPECT_NEAR(trace.host_bound_s, 0.010 + 0.020 + 0.005, 1e-12);
  EXPECT_NEAR(trace.busy_percent(), 50, 1e-9);
  EXPECT_EQ(trace.by_kernel.front().name, "gemm");
  EXPECT_EQ(trace.by_kernel.front().calls, 2);
  EXPECT_EQ(trace.waits_by_call.at("cudaStreamSynchronize"), 1);
}

TEST(GpuTrace, NoKernelIsNoTrace) {
  const GpuTrace trace = analyse({activity(Kind::launch, 0, 1)});
  EXPECT_FALSE(trace.why_not.empty());
  EXPECT_TRUE(trace.to_json().contains("unknown_because"));
  EXPECT_FALSE(analyse({}).why_not.empty());
}

TEST(GpuTrace, OnTheCpuTheWorkStillRunsAndTheReasonIsSaid) {
  int runs = 0;
  const GpuTrace trace = trace_gpu(at::kCPU, [&] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(trace.why_not.empty());
  EXPECT_THROW((void)trace_gpu(at::kCPU, [] { throw std::runtime_error("work"); }), std::runtime_error);
}

TEST(GpuTrace, KernelsAndWaitsOfAGpuAreSeen) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no usable GPU";
  const at::Tensor x = at::ones({1024, 1024}, at::kCUDA);
  (void)trace_gpu(x.device(), [&] { (void)x.mm(x); });  // CUPTI's own start
  const GpuTrace trace = trace_gpu(x.device(), [&] {
    for (int i = 0; i < 5; ++i) (void)(x + i).sum().item<float>();
  });
  ASSERT_TRUE(trace.why_not.empty()) << trace.why_not;
  EXPECT_GE(trace.kernels, 10);
  EXPECT_GE(trace.host_waits, 5);
  EXPECT_GT(trace.busy_s, 0);
  EXPECT_LE(trace.busy_s, trace.window_s);
  EXPECT_THROW((void)trace_gpu(x.device(), [] { throw std::runtime_error("work"); }), std::runtime_error);
  EXPECT_TRUE(trace_gpu(x.device(), [&] { (void)x.mm(x); }).why_not.empty()) << "and the next one works";
}

}  // namespace
}  // namespace suites::probes
