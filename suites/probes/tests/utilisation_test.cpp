#include "suites/probes/utilisation.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace suites::probes {
namespace {

using namespace std::chrono_literals;

TEST(Utilisation, PercentagesFromKnownFigures) {
  Utilisation u;
  u.wall_s = 2;
  u.cpu_s = 3;
  u.cores = 4;
  u.gpu_percent = {70, 90, 80};
  EXPECT_DOUBLE_EQ(u.cpu_percent_of_core(), 150);
  EXPECT_DOUBLE_EQ(u.cpu_percent_of_machine(), 37.5);
  EXPECT_EQ(u.gpu_percent_median(), 80);
  EXPECT_FALSE(u.sm_mhz_median().has_value()) << "unknown is not 0";
  u.sm_mhz = {1980, 1755, 1800};
  EXPECT_EQ(u.sm_mhz_median(), 1800);
  EXPECT_EQ(u.to_json()["gpu_samples"], 3);
}

TEST(Utilisation, AnUnknownGpuFigureSaysWhyAndIsNotZero) {
  UtilisationSampler sampler("", 10);
  const Utilisation u = sampler.stop();
  EXPECT_FALSE(u.gpu_percent_median().has_value());
  EXPECT_EQ(u.to_json()["gpu_unknown_because"], "not asked");
  EXPECT_FALSE(u.to_json().contains("gpu_percent"));
}

TEST(Utilisation, ABusBeyondTheMachineIsUnknown) {
  UtilisationSampler sampler("ffff:ff:1f.7", 10);
  const Utilisation u = sampler.stop();
  EXPECT_FALSE(u.gpu_percent_median().has_value());
  EXPECT_FALSE(u.gpu_unknown_because.empty());
}

// CPU time is accounted to this process by the kernel, whatever else the machine does.
TEST(Utilisation, CpuTimeOfWorkIsSeenAndOfSleepIsNot) {
  UtilisationSampler working;
  const std::clock_t end = std::clock() + CLOCKS_PER_SEC / 10;
  while (std::clock() < end) {
  }
  const Utilisation busy = working.stop();
  EXPECT_GE(busy.cpu_s, 0.08);
  EXPECT_GE(busy.wall_s, 0.04);
  EXPECT_EQ(working.stop().cpu_s, busy.cpu_s);

  UtilisationSampler sleeping;
  std::this_thread::sleep_for(50ms);
  const Utilisation idle = sleeping.stop();
  EXPECT_LT(idle.cpu_s, 0.04);
  EXPECT_GE(idle.wall_s, 0.05);
}

}  // namespace
}  // namespace suites::probes
