#include "nsa/parallel/handshake.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using namespace nsa::parallel;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Handshake, EqualFactsDifferNowhere) {
  const Facts facts = {{"build", "a"}, {"seed", "1"}};
  EXPECT_THAT(differences({facts, facts, facts}), IsEmpty());
  EXPECT_THAT(differences({facts}), IsEmpty());
  EXPECT_THAT(differences({{}, {}}), IsEmpty());
}

TEST(Handshake, TheOddOneAgainstTheMost) {
  const auto found =
      differences({{{"build", "b"}, {"seed", "1"}}, {{"build", "a"}, {"seed", "1"}}, {{"build", "a"}, {"seed", "2"}}});
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].fact, "build");
  EXPECT_THAT(found[0].ranks, ElementsAre(0)) << "rank 0 may be the odd one";
  EXPECT_EQ(describe(found[0]), "build of rank 0 is b, of the others a");
  EXPECT_EQ(describe(found[1]), "seed of rank 2 is 2, of the others 1");
}

TEST(Handshake, OfTwoRanksTheSecond) {
  const auto found = differences({{{"seed", "9"}}, {{"seed", "1"}}});
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].ranks, ElementsAre(1));
  EXPECT_EQ(found[0].usual, "9");
}

TEST(Handshake, WhatIsMissingIsAbsent) {
  const auto found = differences({{{"a", "1"}}, {{"a", "1"}, {"b", "2"}}, {{"a", "1"}}});
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(describe(found[0]), "b of rank 1 is 2, of the others (absent)");
}

TEST(BitSums, OneBitChangesThem) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor value = at::randn({17, 3}).to(type);
    const at::Tensor other = value.clone();
    EXPECT_EQ(bit_sums({{"a", value}}), bit_sums({{"a", other}}));
    const auto bits = value.element_size() == 2 ? at::kShort : value.element_size() == 4 ? at::kInt : at::kLong;
    other.view(bits)[5][1].bitwise_xor_(1);
    EXPECT_NE(bit_sums({{"a", value}}), bit_sums({{"a", other}})) << c10::toString(type);
  }
}

TEST(BitSums, SeeTheBitsAndNotTheValues) {
  const auto sum = [](double value) { return bit_sums({{"a", at::full({3}, value)}}).front(); };
  EXPECT_NE(sum(0.0), sum(-0.0));
  EXPECT_EQ(sum(std::nan("")), sum(std::nan(""))) << "NaN is not a difference";
  EXPECT_EQ(bit_sums({{"a", at::ones({2, 3}).t()}}), bit_sums({{"a", at::ones({3, 2})}})) << "whatever the strides";
  EXPECT_THAT(bit_sums({}), IsEmpty());
}

}  // namespace
