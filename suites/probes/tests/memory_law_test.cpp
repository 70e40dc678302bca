#include "suites/probes/memory_law.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <stdexcept>

namespace suites::probes {
namespace {

using testing::HasSubstr;

std::vector<MemoryPoint> points_of(const MemoryLaw& law, std::initializer_list<double> lengths) {
  std::vector<MemoryPoint> points;
  for (const double S : lengths) points.push_back({S, law.at(S)});
  return points;
}

TEST(MemoryLaw, ExactPointsGiveTheirCoefficients) {
  const MemoryLaw law{1.3e9, 4.5e5, 37};
  const MemoryFit found = fit(points_of(law, {128, 256, 512, 1024, 2048}));
  EXPECT_NEAR(found.law.a / law.a, 1, 1e-6);
  EXPECT_NEAR(found.law.b / law.b, 1, 1e-6);
  EXPECT_NEAR(found.law.c / law.c, 1, 1e-6);
  EXPECT_NEAR(found.r2, 1, 1e-9);
  EXPECT_LT(found.worst_percent, 1e-6);
  EXPECT_NEAR(found.exponent, (law.b * 2048 + 2 * law.c * 2048 * 2048) / (law.b * 2048 + law.c * 2048 * 2048), 1e-6);
}

TEST(MemoryLaw, ALineHasNoSquareAndASquareIsSeen) {
  const MemoryFit line = fit(points_of({1e8, 1e5, 0}, {100, 200, 400, 800}));
  EXPECT_LT(line.law.c * 800 * 800, 1e-6 * line.law.at(800));
  EXPECT_NEAR(line.exponent, 1, 1e-5);
  const MemoryFit square = fit(points_of({1e8, 0, 500}, {100, 200, 400, 800}));
  EXPECT_NEAR(square.exponent, 2, 1e-5);
  EXPECT_NEAR(square.law.c, 500, 1e-3);
}

TEST(MemoryLaw, CoefficientsAreNeverNegative) {
  // Grows more slowly than a line: unconstrained, c would be below 0.
  std::vector<MemoryPoint> points;
  for (const double S : {64.0, 128.0, 256.0, 512.0}) points.push_back({S, 1e6 + 1e4 * std::sqrt(S)});
  const MemoryLaw law = fit(points).law;
  EXPECT_GE(law.a, 0);
  EXPECT_GE(law.b, 0);
  EXPECT_EQ(law.c, 0);
}

TEST(MemoryLaw, TooFewLengthsAreRefused) {
  const MemoryLaw law{1e6, 100, 1};
  EXPECT_THROW((void)fit(points_of(law, {128, 256, 512})), std::invalid_argument);
  EXPECT_THROW((void)fit(points_of(law, {128, 256, 512, 512, 256})), std::invalid_argument) << "three are distinct";
  EXPECT_NO_THROW((void)fit(points_of(law, {128, 256, 512, 640})));
}

TEST(MemoryLaw, PointsThatAreNoNumbersAreRefused) {
  std::vector<MemoryPoint> points = points_of({1e6, 100, 1}, {128, 256, 512, 640});
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 0.0}) {
    points[2].bytes = bad;
    EXPECT_THROW((void)fit(points), std::invalid_argument) << bad;
  }
}

TEST(MemoryLaw, WhatFitsIntoMemory) {
  const MemoryLaw law{1000, 10, 2};
  EXPECT_EQ(law.at(3, 2), 1000 + 2 * (30 + 18));
  EXPECT_EQ(law.longest(law.at(50)), 50);
  EXPECT_EQ(law.longest(law.at(50) - 1), 49);
  EXPECT_EQ(law.longest(law.at(40, 3), 3), 40);
  EXPECT_EQ(law.longest(999), 0);
  EXPECT_EQ(law.largest_batch(law.at(20, 7), 20), 7);
  EXPECT_EQ(law.largest_batch(500, 20), 0);
  EXPECT_EQ((MemoryLaw{1000, 10, 0}.longest(1100)), 10);
}

TEST(MemoryLaw, TheUpdateNeedsItsFloorWhateverTheTokens) {
  const MemoryLaw law{1000, 10, 0, 1500};
  EXPECT_EQ(law.at(3), 1500);
  EXPECT_EQ(law.at(60), 1600);
  EXPECT_EQ(law.longest(1499), 0);
  EXPECT_EQ(law.longest(1500), 50);
  EXPECT_EQ(law.largest_batch(1499, 10), 0);
  EXPECT_EQ(law.largest_batch(1500, 10), 5);
}

TEST(MemoryLaw, NamesOfBackends) {
  nsa::EffectiveFlags flags;
  flags.use_cuda = false;
  EXPECT_EQ(memory_backend(flags, true), "sdpa");
  flags.use_cuda = true;
  EXPECT_EQ(memory_backend(flags, true), "cuda");
  flags.fa2_cmp = true;
  EXPECT_EQ(memory_backend(flags, true), "flash");  // a branch that asked for it keeps it
  EXPECT_EQ(memory_backend(flags, false), "sdpa");
  flags.sel_mask = true;
  EXPECT_EQ(memory_backend(flags, true), "flash_masked");
  EXPECT_EQ(memory_backend(flags, false, true), "sdpa_masked_recompute");
  flags.force_parity = true;
  EXPECT_EQ(memory_backend(flags, true), "reference");
}

class StoredLaws : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder / name) << text; }
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) /
      (std::string("memory_law.") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(StoredLaws, WhatIsWrittenIsRead) {
  const MemoryLaw law{1.5e9, 123456, 7.25};
  MemoryFit found = fit(points_of(law, {128, 256, 512, 1024}));
  found.law.floor = 1.25e9;
  const MemoryKey key{"m7c_125m", "flash_masked", "bf16", "NVIDIA H200"};
  write("h200.yaml", "laws:\n" + to_yaml({key, found.law, 78295332, 1024, "2026-01-01, build abc"}, found));
  const auto laws = load_memory_laws(folder);
  ASSERT_EQ(laws.size(), 1U);
  const auto stored = find_memory_law(laws, key, 78295332);
  ASSERT_TRUE(stored);
  EXPECT_NEAR(stored->law.at(2048) / law.at(2048), 1, 1e-5);
  EXPECT_EQ(stored->law.floor, 1.25e9);
  EXPECT_EQ(stored->longest_S, 1024);
  EXPECT_THAT(stored->origin, HasSubstr("build abc"));
  EXPECT_FALSE(find_memory_law(laws, key, 78295333)) << "another model of this name";
  MemoryKey other = key;
  other.gpu = "NVIDIA A100";
  EXPECT_FALSE(find_memory_law(laws, other, 78295332));
}

TEST_F(StoredLaws, AMissingFolderHoldsNoneAndABadFileIsNamed) {
  EXPECT_TRUE(load_memory_laws(folder / "nowhere").empty());
  write("bad.yaml", "laws:\n  - model: tiny\n    backend: sdpa\n");
  try {
    (void)load_memory_laws(folder);
    FAIL() << "accepted";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("bad.yaml:2"));
    EXPECT_THAT(error.what(), HasSubstr("precision"));
  }
  write("bad.yaml", "laws: {\n");
  EXPECT_THROW((void)load_memory_laws(folder), std::runtime_error);
}

}  // namespace
}  // namespace suites::probes
