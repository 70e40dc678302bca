// The driver, and who else is on the GPU.
#include <unistd.h>

#include "suites/preflight/tests/preflight.hpp"
#include "suites/probes/gpu_processes.hpp"

namespace suites::preflight_tests {
namespace {

TEST_F(Preflight, BrokenCudaDoesNotLookLikeNoGpu) {
  checks::cuda_present(context, {.driver = 12040, .runtime = 13000, .devices = 0, .error = "driver too old"});
  EXPECT_EQ(context.grave_codes(), Codes{code(codes::kCudaUnusable)});
}

TEST_F(Preflight, NoGpuAndHiddenGpuAreFacts) {
  checks::cuda_present(context, {.driver = 0, .runtime = 13000, .devices = 0, .error = "insufficient driver"});
  checks::cuda_present(context, {.driver = 13000, .runtime = 13000, .error = "no device", .no_device = true});
  checks::cuda_present(context, {.driver = 13000, .runtime = 13000, .devices = 1, .error = ""});
  EXPECT_TRUE(context.findings.empty());
}

TEST_F(Preflight, DriverOfAnOlderMajorVersionIsFound) {
  checks::driver(context, {.driver = 13000, .runtime = 13010, .devices = 1, .error = ""});
  EXPECT_TRUE(context.findings.empty());
  checks::driver(context, {.driver = 12080, .runtime = 13000, .devices = 1, .error = ""});
  EXPECT_EQ(all_codes(), Codes{code(codes::kDriver)});
}

probes::GpuCensus census(std::vector<probes::ProcessOnGpu> processes, std::uint64_t used) {
  probes::GpuCensus c;
  c.processes = std::move(processes);
  c.memory = probes::GpuMemory{std::uint64_t{140} << 30, (std::uint64_t{140} << 30) - used, used};
  return c;
}

TEST_F(Preflight, ForeignProcessIsNamedWithPidAndBytes) {
  const auto c =
      census({{100, "nsa-validate", 1 << 20}, {777, "python", std::uint64_t{10} << 30}}, std::uint64_t{11} << 30);
  const auto parent = [](std::int64_t pid) { return std::optional<std::int64_t>(pid == 100 ? 99 : 1); };
  checks::foreign_processes(context, c, probes::find_foreign(c, 100, 99, parent), 1 << 20);
  ASSERT_EQ(all_codes(), Codes{code(codes::kForeignProcess)});
  EXPECT_NE(context.findings[0].message.find("pid 777 (python) with 10737418240 bytes"), std::string::npos);
}

TEST_F(Preflight, OwnProcessTreeIsNotForeign) {
  const auto c = census({{100, "w", 1}, {101, "w2", 1}, {102, "w3", 1}}, 1 << 20);
  // 101 is another worker of supervisor 99, 102 a child of 101.
  const auto parent = [](std::int64_t pid) {
    return std::optional<std::int64_t>(pid == 102 ? 101 : pid == 99 ? 1 : 99);
  };
  checks::foreign_processes(context, c, probes::find_foreign(c, 100, 99, parent), 1 << 20);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks, 1);
}

TEST_F(Preflight, InvisibleProcessesAreNoPass) {
  const auto c = census({{40312, "", std::nullopt}}, std::uint64_t{1} << 30);
  const auto foreign = probes::find_foreign(c, 100, 99, [](std::int64_t) { return std::nullopt; });
  EXPECT_FALSE(foreign.can_tell);
  checks::foreign_processes(context, c, foreign, 0);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.facts["gpu.processes"]["foreign"].get<std::string>().rfind("cannot tell", 0), 0U);
}

TEST_F(Preflight, MemoryThatNobodyVisibleHoldsIsFound) {
  const auto c = census({}, std::uint64_t{12} << 30);
  checks::foreign_processes(context, c, probes::find_foreign(c, 100, 99), std::int64_t{1} << 30);
  EXPECT_EQ(all_codes(), Codes{code(codes::kForeignProcess)});
}

TEST_F(Preflight, UnusableNvmlIsAFact) {
  probes::GpuCensus c;
  c.why_not = "libnvidia-ml.so.1: no such file";
  checks::foreign_processes(context, c, probes::find_foreign(c, 100, 99), 0);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_NE(context.facts["gpu.processes"]["foreign"].get<std::string>().find("libnvidia-ml"), std::string::npos);
}

}  // namespace
}  // namespace suites::preflight_tests
