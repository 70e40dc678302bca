#include "fuzz/mutator.hpp"

#include <gtest/gtest.h>

#include <set>

namespace fuzz {
namespace {

TEST(Mutator, TheCorpusComesFirstAndEveryInputCanBeMadeAgain) {
  const Mutator mutator({"one: 1\n", "two: [2]\n"}, {"[", "]"}, 3);
  EXPECT_EQ(mutator.input(0), "one: 1\n");
  EXPECT_EQ(mutator.input(1), "two: [2]\n");
  std::set<std::string> different;
  for (std::uint64_t i = 2; i < 500; ++i) {
    EXPECT_EQ(mutator.input(i), Mutator({"one: 1\n", "two: [2]\n"}, {"[", "]"}, 3).input(i));
    EXPECT_LE(mutator.input(i).size(), Mutator::kMostBytes);
    different.insert(mutator.input(i));
  }
  EXPECT_GT(different.size(), 350U);
  EXPECT_NE(mutator.input(7), Mutator({"one: 1\n", "two: [2]\n"}, {"[", "]"}, 4).input(7));
}

TEST(Mutator, AnEmptyInputIsOneAsWell) {
  const Mutator mutator({""}, {}, 1);
  for (std::uint64_t i = 0; i < 300; ++i) EXPECT_LE(mutator.input(i).size(), Mutator::kMostBytes);
  EXPECT_THROW(Mutator({}, {}, 1), std::invalid_argument);
}

}  // namespace
}  // namespace fuzz
