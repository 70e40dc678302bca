#include "suites/machine/gpu.hpp"

#include <gtest/gtest.h>

#include "suites/codes.hpp"

namespace suites::machine {
namespace {

constexpr std::uint64_t kUnsignedGiB = std::uint64_t{1} << 30;

GpuState healthy() {
  GpuState s;
  s.name = "NVIDIA H200";
  s.memory = probes::GpuMemory{140 * kUnsignedGiB, 139 * kUnsignedGiB, kUnsignedGiB};
  s.clocks = probes::GpuClocks{345, 1980, 3201};
  s.power = probes::GpuPower{75, 700, 700};
  s.celsius = 31;
  s.errors = probes::GpuErrors{};
  return s;
}

std::string failed(const Inspection& inspection, std::string_view code) {
  std::string text;
  for (const Judgement& j : inspection.judgements) {
    if (j.holds) continue;
    EXPECT_EQ(j.code, code) << j.what_failed;
    text += j.what_failed + "\n";
  }
  return text;
}

TEST(Gpu, HealthyIsSound) {
  const Inspection found = judge_gpu(healthy());
  EXPECT_TRUE(found.sound());
  EXPECT_EQ(found.judgements.size(), 4U);
  EXPECT_NE(found.summary.find("NVIDIA H200, 139.0 GiB of 140.0 GiB free"), std::string::npos) << found.summary;
}

TEST(Gpu, MemoryErrorsAndPendingRowsAreFound) {
  GpuState s = healthy();
  s.errors->uncorrected = 3;
  s.errors->rows_pending = true;
  const std::string text = failed(judge_gpu(s), codes::kGpuFault);
  EXPECT_NE(text.find("3 uncorrectable"), std::string::npos) << text;
  EXPECT_NE(text.find("wait for a reset"), std::string::npos) << text;
  s.errors->rows_failed = true;
  EXPECT_NE(failed(judge_gpu(s), codes::kGpuFault).find("could not be replaced"), std::string::npos);
}

TEST(Gpu, HeatAndALoweredPowerLimitAreFound) {
  GpuState s = healthy();
  s.held_back_by = {"sw_power_cap", "hw_thermal_slowdown"};
  s.power->limit_w = 450;
  const std::string text = failed(judge_gpu(s), codes::kGpuHeldBack);
  EXPECT_NE(text.find("hw_thermal_slowdown"), std::string::npos) << text;
  EXPECT_EQ(text.find("sw_power_cap"), std::string::npos) << "a power limit that is reached is no fault";
  EXPECT_NE(text.find("450 W, the board's own is 700 W"), std::string::npos) << text;
}

TEST(Gpu, WhatTheDriverDoesNotTellIsNotJudged) {
  const Inspection found = judge_gpu(GpuState{});
  EXPECT_TRUE(found.sound());
  EXPECT_EQ(found.judgements.size(), 1U);
  EXPECT_FALSE(found.seen.contains("power_w"));
}

TEST(Clocks, LowOnesUnderLoadAreFound) {
  EXPECT_TRUE(judge_clocks({{1200, 1755, 1980, 1755}, 1980, {"sw_power_cap"}}).sound());
  const std::string text = failed(judge_clocks({{1000, 1005, 1010}, 1980, {}}), codes::kGpuHeldBack);
  EXPECT_NE(text.find("1005 MHz, 51 %"), std::string::npos) << text;
  EXPECT_FALSE(judge_clocks({{1980, 1980}, 1980, {"hw_power_brake"}}).sound());
}

TEST(Clocks, NoSamplesCannotTell) {
  const Inspection found = judge_clocks({});
  EXPECT_TRUE(found.cannot_tell);
  EXPECT_TRUE(found.judgements.empty());
}

probes::GpuCensus census(std::vector<probes::ProcessOnGpu> processes, std::uint64_t used) {
  probes::GpuCensus c;
  c.processes = std::move(processes);
  c.memory = probes::GpuMemory{140 * kUnsignedGiB, 140 * kUnsignedGiB - used, used};
  return c;
}

TEST(Foreign, IsNamedWithPidBytesAndHowToEndIt) {
  probes::ForeignProcesses foreign;
  foreign.can_tell = true;
  foreign.foreign = {{777, "python", 10 * kUnsignedGiB, "python train.py", "ada", 'S'}};
  const Inspection found = judge_foreign(census(foreign.foreign, 11 * kUnsignedGiB), foreign, 0);
  const std::string text = failed(found, codes::kForeignProcess);
  EXPECT_NE(text.find("pid 777 (python) with 10737418240 bytes [of ada; kill 777, and kill -9 777 if it stays]"),
            std::string::npos)
      << text;
  EXPECT_EQ(found.seen["foreign"][0]["command"], "python train.py");
}

TEST(Foreign, NobodyIsSoundAndCannotTellIsNot) {
  probes::ForeignProcesses nobody;
  nobody.can_tell = true;
  EXPECT_TRUE(judge_foreign(census({}, kUnsignedGiB), nobody, 0).sound());
  probes::ForeignProcesses blind;
  blind.why_not = "a container";
  const Inspection few = judge_foreign(census({}, kUnsignedGiB), blind, 0);
  EXPECT_TRUE(few.cannot_tell);
  EXPECT_TRUE(few.sound());
  EXPECT_NE(failed(judge_foreign(census({}, 12 * kUnsignedGiB), blind, static_cast<std::int64_t>(kUnsignedGiB)),
                   codes::kForeignProcess),
            "");
}

TEST(Gpu, VersionsOfCudaAreWrittenWithADot) {
  EXPECT_EQ(cuda_version(13000), "13.0");
  EXPECT_EQ(cuda_version(12040), "12.4");
  EXPECT_EQ(cuda_version(11080), "11.8");
}

}  // namespace
}  // namespace suites::machine
