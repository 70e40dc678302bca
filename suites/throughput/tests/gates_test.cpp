#include "suites/throughput/gates.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::throughput_cases {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Sample = std::vector<double>;

Gate gate_of(const Sample& rate, double floor = 300) { return judge(summarise(rate), floor); }

TEST(Gates, AboveOnlyWhenTheWholeIntervalIs) {
  EXPECT_EQ(gate_of({310, 320, 315, 305, 330}), Gate::above);
  EXPECT_EQ(gate_of({300, 300, 300, 300, 300}), Gate::above) << "at the floor is not below it";
}

TEST(Gates, BelowAndFarBelow) {
  EXPECT_EQ(gate_of({200, 210, 190, 205, 220}), Gate::below);
  EXPECT_EQ(gate_of({39, 40, 41, 38, 39}), Gate::far_below) << "the seeds' 39 tok/s";
  EXPECT_EQ(gate_of({149, 149, 149}), Gate::far_below);
  EXPECT_EQ(gate_of({151, 151, 151}), Gate::below);
}

TEST(Gates, AnIntervalThatHoldsTheFloorIsUnclear) { EXPECT_EQ(gate_of({100, 250, 300, 350, 900}), Gate::unclear); }

TEST(Gates, OneSlowRepeatDoesNotDecide) {
  EXPECT_NE(gate_of({400, 410, 20, 405, 395, 402, 408}), Gate::far_below);
  EXPECT_NE(gate_of({400, 410, 20, 405, 395, 402, 408}), Gate::below);
}

TEST(Gates, NothingAndNanNeverPass) {
  EXPECT_EQ(gate_of({}), Gate::far_below);
  EXPECT_EQ(gate_of({400, kNan, 400}), Gate::far_below);
  EXPECT_EQ(gate_of({400, 400, 400}, kNan), Gate::far_below);
}

TEST(Gates, RatesFromSeconds) {
  const Sample per_second = rates(Sample{0.5, 2}, 1000);
  EXPECT_EQ(per_second, (Sample{2000, 500}));
}

TEST(Gates, ScatterIsRelative) {
  EXPECT_NEAR(summarise(Sample{90, 95, 100, 105, 110}).scatter, 0.1, 1e-12);
  EXPECT_GT(summarise(Sample{10, 100, 1000, 10, 1000}).scatter, kMaximalScatter);
}

std::vector<Depth> depths(double t1, double t2, double t4) {
  return {{1, {t1, t1 * 1.01, t1 * 0.99}}, {2, {t2, t2 * 1.01, t2 * 0.99}}, {4, {t4, t4 * 1.01, t4 * 0.99}}};
}

TEST(Gates, LinearDepthGrowsByOne) {
  const probes::Interval linear = growth(depths(1.5, 2.5, 4.5));  // 0.5 fixed, 1 a layer
  EXPECT_LE(linear.low, 1);
  EXPECT_GE(linear.high, 1);
}

TEST(Gates, ACostThatGrowsWithDepthShows) { EXPECT_GT(growth(depths(1, 4, 32)).low, 1.5); }

TEST(Gates, DepthsWithoutASlopeAreNoDivisionByZero) {
  const probes::Interval flat = growth(depths(2, 2, 2));
  EXPECT_TRUE(std::isfinite(flat.low) && std::isfinite(flat.high));
  EXPECT_LE(flat.low, 1.1);
  const probes::Interval falling = growth(depths(4, 2, 2));
  EXPECT_TRUE(std::isfinite(falling.high));
  EXPECT_THROW((void)growth(std::vector<Depth>(2)), std::invalid_argument);
}

// The file says where the number comes from; the default must be the same number.
TEST(Gates, TheDefaultGateFileAgreesWithTheDefaults) {
  harness::Settings settings = tests::default_settings(throughput);
  const double built_in = settings.real("throughput.floor_tok_s");
  settings.load_file(data_folder() / "configs" / "gates" / "default.yaml");
  EXPECT_EQ(settings.real("throughput.floor_tok_s"), built_in);
}

TEST(Gates, EveryGateFileLoads) {
  for (const auto& entry : std::filesystem::directory_iterator(data_folder() / "configs" / "gates")) {
    if (entry.path().extension() != ".yaml") continue;
    harness::Settings settings = tests::default_settings(throughput);
    EXPECT_NO_THROW(settings.load_file(entry.path())) << entry.path();
    EXPECT_GT(settings.real("throughput.floor_tok_s"), 0) << entry.path();
  }
}

}  // namespace
}  // namespace suites::throughput_cases
