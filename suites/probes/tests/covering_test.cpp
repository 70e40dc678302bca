#include "suites/probes/covering.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace {

using namespace suites::covering;

Problem grid(int factors, int values) {
  Problem problem;
  for (int i = 0; i < factors; ++i)
    problem.factors.push_back(
        {std::string(1, static_cast<char>('a' + i)), std::vector<std::string>(static_cast<std::size_t>(values))});
  return problem;
}

TEST(Covering, EveryPairStandsSomewhere) {
  for (const auto& [factors, values] : {std::pair{2, 2}, {5, 3}, {12, 4}}) {
    const Problem problem = grid(factors, values);
    const std::vector<Row> rows = pairwise(problem, 1);
    // Counted here without the code under test.
    std::set<std::array<int, 4>> pairs;
    for (const Row& row : rows)
      for (int i = 0; i < factors; ++i)
        for (int j = i + 1; j < factors; ++j)
          pairs.insert({i, row[static_cast<std::size_t>(i)], j, row[static_cast<std::size_t>(j)]});
    EXPECT_EQ(pairs.size(), static_cast<std::size_t>(factors * (factors - 1) / 2 * values * values));
    EXPECT_LT(rows.size(), static_cast<std::size_t>(4 * values * values)) << "not the full product";
    EXPECT_TRUE(coverage(problem, rows).missed.empty());
  }
}

TEST(Covering, ForbiddenChoicesNeverMeetAndTheirPairsAreNamed) {
  Problem problem = grid(4, 3);
  problem.forbidden = {{{{0, 1}, {1, 1}}, "a pair"}, {{{0, 2}, {2, 2}, {3, 0}}, "a triple"}};
  const std::vector<Row> rows = pairwise(problem, 7);
  for (const Row& row : rows) EXPECT_TRUE(legal(problem, row));
  const Coverage c = coverage(problem, rows);
  ASSERT_EQ(c.illegal.size(), 1U) << "a triple leaves each of its pairs legal";
  EXPECT_EQ(c.illegal[0].a, (Choice{0, 1}));
  EXPECT_EQ(c.illegal[0].b, (Choice{1, 1}));
  EXPECT_TRUE(c.missed.empty());
  EXPECT_EQ(c.covered, c.legal());
  EXPECT_EQ(c.possible, 54U);
}

// Choices that leave another factor without a value: only looking ahead finds that the pair is illegal.
TEST(Covering, PairsThatCannotBeCompletedAreIllegal) {
  Problem problem = grid(3, 2);
  problem.forbidden = {{{{0, 0}, {2, 0}}, ""}, {{{1, 0}, {2, 1}}, ""}};  // a=0 needs c=1, b=0 needs c=0
  const Coverage c = coverage(problem, pairwise(problem, 3));
  EXPECT_EQ(c.illegal.size(), 3U);  // the two written ones, and a=0 with b=0
  EXPECT_TRUE(c.missed.empty());
}

TEST(Covering, MissingAndIllegalRowsDoNotCount) {
  Problem problem = grid(3, 2);
  problem.forbidden = {{{{0, 0}, {1, 0}}, ""}};
  EXPECT_EQ(coverage(problem, {}).missed.size(), 11U);
  EXPECT_EQ(coverage(problem, {{0, 0, 0}}).covered, 0U) << "an illegal row covers nothing";
  EXPECT_EQ(coverage(problem, {{0, 1, 0}}).covered, 3U);
}

TEST(Covering, SameSeedSameRows) {
  const Problem problem = grid(6, 3);
  EXPECT_EQ(pairwise(problem, 5), pairwise(problem, 5));
}

}  // namespace
