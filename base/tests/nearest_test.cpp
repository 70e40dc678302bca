#include "base/nearest.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace {

TEST(Nearest, Distances) {
  EXPECT_EQ(base::edit_distance("", ""), 0U);
  EXPECT_EQ(base::edit_distance("abc", ""), 3U);
  EXPECT_EQ(base::edit_distance("", "ab"), 2U);
  EXPECT_EQ(base::edit_distance("steps", "step"), 1U);
  EXPECT_EQ(base::edit_distance("setps", "steps"), 1U);  // a transposition
  EXPECT_EQ(base::edit_distance("DIM", "dim"), 0U);
  EXPECT_EQ(base::edit_distance("kitten", "sitting"), 3U);
}

TEST(Nearest, TakesTheNearestAndRefusesStrangers) {
  const std::array<std::string_view, 4> names = {"n_heads", "n_layers", "dim", "d_k"};
  EXPECT_EQ(base::nearest("n_layer", names), "n_layers");
  EXPECT_EQ(base::nearest("nheads", names), "n_heads");
  EXPECT_EQ(base::nearest("dk", names), "d_k");
  EXPECT_EQ(base::nearest("wholly_other", names), "");
  EXPECT_EQ(base::nearest("", names), "");
  EXPECT_EQ(base::nearest("x", std::vector<std::string>{}), "");
}

TEST(Nearest, OfWordsOnACommandLine) {
  const std::vector<std::string> names{"smoke", "standard", "s_sweep", "forward"};
  EXPECT_EQ(base::nearest("smok", names), "smoke");
  EXPECT_EQ(base::nearest("s-sweep", names), "s_sweep");
  EXPECT_EQ(base::nearest("foward", names), "forward");
  EXPECT_EQ(base::nearest("throughput", names), "");
}

}  // namespace
