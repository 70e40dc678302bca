#include "harness/compare.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Row {
  double value, bound;
  bool at_most, at_least;
};

TEST(Compare, TruthTableWithNanAndInfinities) {
  const std::vector<Row> rows{
      {1, 2, true, false},        {2, 2, true, true},          {3, 2, false, true},         {0.0, -0.0, true, true},
      {-kInf, 0, true, false},    {kInf, 0, false, true},      {kInf, kInf, true, true},    {-kInf, -kInf, true, true},
      {-kInf, kInf, true, false}, {kInf, -kInf, false, true},  {0, kInf, true, false},      {0, -kInf, false, true},
      {kNan, 0, false, false},    {0, kNan, false, false},     {kNan, kNan, false, false},  {kNan, kInf, false, false},
      {kInf, kNan, false, false}, {kNan, -kInf, false, false}, {-kInf, kNan, false, false}, {-kNan, 1, false, false},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(harness::at_most(row.value, row.bound), row.at_most) << row.value << " <= " << row.bound;
    EXPECT_EQ(harness::at_least(row.value, row.bound), row.at_least) << row.value << " >= " << row.bound;
  }
}

TEST(Compare, WithinNeedsThreeNumbersInOrder) {
  EXPECT_TRUE(harness::within(1, 1, 1));
  EXPECT_TRUE(harness::within(0, -kInf, kInf));
  EXPECT_FALSE(harness::within(2, 3, 1));  // an interval upside down holds nothing
  for (const double other : {-kInf, -1.0, 0.0, 1.0, kInf, kNan}) {
    EXPECT_FALSE(harness::within(kNan, -kInf, other));
    EXPECT_FALSE(harness::within(kNan, other, kInf));
    EXPECT_FALSE(harness::within(other, kNan, kInf));
    EXPECT_FALSE(harness::within(other, -kInf, kNan));
  }
}

}  // namespace
