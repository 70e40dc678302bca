#include "suites/probes/decision.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

namespace suites::probes {
namespace {

using testing::HasSubstr;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Times as machines give them: a sharp lower edge, a tail upwards, one repeat in twelve disturbed.
class Machine {
 public:
  explicit Machine(std::uint32_t seed) : generator_(seed) {}
  std::vector<double> times(double seconds, int count) {
    std::vector<double> sample;
    for (int i = 0; i < count; ++i) {
      const double disturbed = one_in_twelve_(generator_) == 0 ? 1.3 : 1.0;
      sample.push_back(seconds * std::exp(0.02 * std::abs(normal_(generator_))) * disturbed);
    }
    return sample;
  }
  Timed timed(double seconds, int count = 20) {
    const std::vector<double> a = times(seconds, count), b = times(seconds, count);
    Timed timed{a, noise_floor(a, b), {}};
    timed.seconds.insert(timed.seconds.end(), b.begin(), b.end());
    return timed;
  }

 private:
  std::mt19937 generator_;
  std::normal_distribution<double> normal_;
  std::uniform_int_distribution<int> one_in_twelve_{0, 11};
};

TEST(Decision, TheSameBuildTwentyTimesIsNeverFasterOrSlower) {
  int same = 0;
  for (std::uint32_t trial = 0; trial < 20; ++trial) {
    Machine machine(trial);
    const Timed before = machine.timed(0.1), now = machine.timed(0.1);
    const Decision decision = decide(before, now);
    EXPECT_NE(decision.change, Change::slower) << decision.to_json();
    EXPECT_NE(decision.change, Change::faster) << decision.to_json();
    same += decision.change == Change::same;
  }
  EXPECT_GE(same, 18) << "a comparison that never says SAME is of no use";
}

TEST(Decision, ATenthSlowerIsFoundAndATenthFasterToo) {
  for (std::uint32_t trial = 0; trial < 20; ++trial) {
    Machine machine(100 + trial);
    const Timed before = machine.timed(0.1);
    EXPECT_EQ(decide(before, machine.timed(0.11)).change, Change::slower) << trial;
    EXPECT_EQ(decide(before, machine.timed(0.09)).change, Change::faster) << trial;
  }
}

TEST(Decision, ASmallChangeIsTheSameAndOneAtTheThresholdCannotBeTold) {
  Machine machine(7);
  const Timed before = machine.timed(0.1, 40);
  EXPECT_EQ(decide(before, machine.timed(0.102, 40)).change, Change::same);
  const Decision edge = decide(before, machine.timed(0.105, 12));
  EXPECT_EQ(edge.change, Change::ambiguous) << edge.to_json();
  EXPECT_THAT(edge.reason, HasSubstr("threshold"));
  EXPECT_EQ(words(edge.change), "CANNOT TELL");
}

TEST(Decision, ANoisyBuildRaisesTheThreshold) {
  Machine machine(8);
  Timed before = machine.timed(0.1), now = machine.timed(0.11);
  EXPECT_EQ(decide(before, now).change, Change::slower);
  before.noise = 0.2;  // its own two halves differed by a fifth
  EXPECT_EQ(decide(before, now).change, Change::same);
}

TEST(Decision, FewScatteredOrSenselessSamplesAreUnusable) {
  Machine machine(9);
  const Timed good = machine.timed(0.1);
  const Timed few{{0.1, 0.1, 0.1, 0.1}, 0, {}};
  const Timed wild{{0.1, 0.2, 0.1, 0.4, 0.1, 0.3, 0.05, 0.5}, 0.01, {}};
  const Timed nan{{0.1, 0.1, kNan, 0.1, 0.1, 0.1}, 0, {}};
  const Timed zero{{0, 0, 0, 0, 0, 0}, 0, {}};
  Timed no_floor = good;
  no_floor.noise = kNan;
  for (const Timed& bad : {few, wild, nan, zero, Timed{}}) {
    EXPECT_EQ(decide(good, bad).change, Change::unusable);
    EXPECT_EQ(decide(bad, good).change, Change::unusable);
    EXPECT_FALSE(decide(bad, good).reason.empty());
  }
  EXPECT_NE(decide(good, no_floor).change, Change::same) << "NaN never passes";
  EXPECT_EQ(decide(no_floor, good).change, Change::unusable);
}

TEST(Decision, AClockThatMovedIsNoRegression) {
  Machine machine(10);
  Timed before = machine.timed(0.1), now = machine.timed(0.115);
  before.sm_mhz = 1980;
  now.sm_mhz = 1980;
  EXPECT_EQ(decide(before, now).change, Change::slower);
  now.sm_mhz = 1980 / 1.15;
  const Decision decision = decide(before, now);
  EXPECT_EQ(decision.change, Change::ambiguous);
  EXPECT_THAT(decision.reason, HasSubstr("clock"));
}

TEST(Decision, NoiseFloorOfKnownSamples) {
  EXPECT_DOUBLE_EQ(noise_floor(std::vector<double>{2, 2, 2}, std::vector<double>{2, 2, 2}), 0);
  EXPECT_DOUBLE_EQ(noise_floor(std::vector<double>{2, 2, 2}, std::vector<double>{3, 3, 3}), 0.5);
  EXPECT_DOUBLE_EQ(noise_floor(std::vector<double>{3, 3, 3}, std::vector<double>{2, 2, 2}), 0.5) << "symmetric";
  EXPECT_TRUE(std::isnan(noise_floor(std::vector<double>{}, std::vector<double>{2})));
}

TEST(Decision, TimesSurviveJson) {
  Timed timed{{0.25, 0.5}, 0.03, 1755.0};
  const Timed back = Timed::from_json(timed.to_json());
  EXPECT_EQ(back.seconds, timed.seconds);
  EXPECT_EQ(back.noise, timed.noise);
  EXPECT_EQ(back.sm_mhz, timed.sm_mhz);
  EXPECT_THROW((void)Timed::from_json({{"noise", 1}}), std::invalid_argument);
  EXPECT_THROW((void)Timed::from_json({{"seconds", {"fast"}}, {"noise", 0}}), std::invalid_argument);
}

}  // namespace
}  // namespace suites::probes
