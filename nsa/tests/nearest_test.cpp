#include "nsa/nearest.hpp"

#include <gtest/gtest.h>

#include <array>

namespace {

TEST(Nearest, Distances) {
  EXPECT_EQ(nsa::edit_distance("", ""), 0U);
  EXPECT_EQ(nsa::edit_distance("abc", ""), 3U);
  EXPECT_EQ(nsa::edit_distance("", "ab"), 2U);
  EXPECT_EQ(nsa::edit_distance("steps", "step"), 1U);
  EXPECT_EQ(nsa::edit_distance("setps", "steps"), 1U);  // a transposition
  EXPECT_EQ(nsa::edit_distance("DIM", "dim"), 0U);
  EXPECT_EQ(nsa::edit_distance("kitten", "sitting"), 3U);
}

TEST(Nearest, TakesTheNearestAndRefusesStrangers) {
  const std::array<std::string_view, 4> names = {"n_heads", "n_layers", "dim", "d_k"};
  EXPECT_EQ(nsa::nearest("n_layer", names), "n_layers");
  EXPECT_EQ(nsa::nearest("nheads", names), "n_heads");
  EXPECT_EQ(nsa::nearest("dk", names), "d_k");
  EXPECT_EQ(nsa::nearest("wholly_other", names), "");
  EXPECT_EQ(nsa::nearest("", names), "");
  EXPECT_EQ(nsa::nearest("x", {}), "");
}

}  // namespace
