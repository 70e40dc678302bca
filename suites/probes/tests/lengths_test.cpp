#include "suites/probes/lengths.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace suites {
namespace {

using Lengths = std::vector<std::int64_t>;

TEST(BoundaryLengths, AreTheEdgesOfEveryBlockOnceAndAscending) {
  const nsa::Geometry tiny{.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32};
  EXPECT_EQ(boundary_lengths(tiny, {}), (Lengths{1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65}));
  EXPECT_EQ(boundary_lengths(tiny, {64, 65, 1}), (Lengths{2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63}));
  EXPECT_EQ(boundary_lengths({.l = 1, .d = 1, .l_sel = 1, .n_sel = 3, .w = 1}, {}), (Lengths{1, 2, 4}));
}

TEST(StandardLengths, HoldEveryEdgeOfBlocksAndTiles) {
  const nsa::Geometry seed{.l = 32, .d = 16, .l_sel = 64, .n_sel = 16, .w = 512};
  const Lengths lengths = standard_lengths(seed);
  EXPECT_TRUE(std::is_sorted(lengths.begin(), lengths.end()));
  EXPECT_GE(lengths.front(), 1);
  for (const std::int64_t size : {16, 32, 64, 128, 256, 512, 1024}) {
    for (const std::int64_t S : {size - 1, size, size + 1}) {
      EXPECT_TRUE(std::binary_search(lengths.begin(), lengths.end(), S)) << S;
    }
  }
  for (const std::int64_t S : {1, 2, 48, 96, 192, 384}) {
    EXPECT_TRUE(std::binary_search(lengths.begin(), lengths.end(), S)) << S;
  }
  EXPECT_EQ(lengths.back(), 1025);
  EXPECT_EQ(standard_lengths({.l = 1, .d = 1, .l_sel = 1, .n_sel = 3, .w = 1}).front(), 1);
}

TEST(SeparatingCongruence, FindsTheRuleOfTheBadLengths) {
  const auto rule = separating_congruence({128, 192, 384, 640, 1000, 1024}, {512, 1280, 2048});
  ASSERT_TRUE(rule.has_value());
  EXPECT_EQ(rule->modulus, 768);
  EXPECT_EQ(rule->remainder, 512);
  const auto even = separating_congruence({1, 3, 5}, {2, 8, 6});
  ASSERT_TRUE(even.has_value());
  EXPECT_EQ(even->modulus, 2);
}

TEST(SeparatingCongruence, ClaimsNothingWithoutEvidence) {
  EXPECT_FALSE(separating_congruence({1, 2}, {7}).has_value());
  EXPECT_FALSE(separating_congruence({}, {}).has_value());
  EXPECT_FALSE(separating_congruence({2, 4}, {3, 8, 10}).has_value());
}

}  // namespace
}  // namespace suites
