#include "suites/oracle/extent.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace suites::oracle {
namespace {

constexpr double kAllowed = 1e-9;

at::Tensor values(at::IntArrayRef sizes) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  return at::randn(sizes, generator, at::TensorOptions(at::kDouble));
}

TEST(Extent, NothingIsOff) {
  at::Tensor wanted = values({2, 12, 4, 8});
  wanted.select(1, 0).fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(extent_of_error(wanted.clone(), wanted, kAllowed), "");
  EXPECT_EQ(extent_of_error(wanted.narrow(1, 0, 4), wanted, kAllowed), "");
}

TEST(Extent, PlacesAreToldByTheirOrder) {
  const at::Tensor wanted = values({2, 12, 4, 8});
  const auto with = [&](const at::Tensor& part, double more) { part.add_(values(part.sizes()).square() + more); };
  at::Tensor v = wanted.clone();
  with(v.narrow(1, 8, 4), 1);
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "in rows from 8 on");
  v = wanted.clone();
  with(v.narrow(1, 2, 3), 1);
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "in rows 2 to 4");
  v = wanted.clone();
  with(v.slice(2, 1, std::nullopt, 2), 1);
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "in heads 1, 3");
  v = wanted.clone();
  with(v.slice(1, 2, std::nullopt, 3), 1);
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "in every 3rd row from 2 on");
  v = wanted.clone();
  with(v.select(0, 1).narrow(0, 5, 1), 1);
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "in sequence 1 alone, in row 5 alone");
  v = wanted.clone();
  with(v, 1);
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "everywhere");
}

TEST(Extent, OtherShapesThanFourDimensions) {
  const at::Tensor vector = values({6});
  EXPECT_EQ(extent_of_error(vector * 2, vector, kAllowed), "everywhere; it is 2 times what it should be");
  at::Tensor v = vector.clone();
  v[2].add_(1);
  EXPECT_EQ(extent_of_error(v, vector, kAllowed).substr(0, 16), "in value 2 alone");
  const at::Tensor stream = values({2, 5, 7});
  v = stream.clone();
  v.select(2, 3).square_().add_(1);
  EXPECT_EQ(extent_of_error(v, stream, kAllowed), "in channel 3 alone");
  EXPECT_EQ(extent_of_error(at::ones({}, at::kDouble), at::zeros({}, at::kDouble), kAllowed), "") << "a number";
}

TEST(Extent, AMultipleIsTold) {
  const at::Tensor wanted = values({2, 12, 4, 8});
  EXPECT_EQ(extent_of_error(wanted * 0.125, wanted, kAllowed), "everywhere; it is 0.125 times what it should be");
  at::Tensor v = wanted.clone();
  v.narrow(1, 0, 3).zero_();
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "in rows 0 to 2; it is 0");
  v = wanted.clone();
  v.select(2, 3).neg_();
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "in head 3 alone; it is -1 times what it should be");
}

TEST(Extent, AnotherSliceIsRecognised) {
  const at::Tensor wanted = values({2, 12, 4, 8});
  at::Tensor v = wanted.clone();
  v.select(0, 1).copy_(wanted.select(0, 0));
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "in sequence 1 alone; sequence 1 is what sequence 0 should be");
  EXPECT_EQ(extent_of_error(wanted.roll(1, 2), wanted, kAllowed), "everywhere; head 0 is what head 3 should be");
  EXPECT_EQ(extent_of_error(wanted.roll(1, 1), wanted, kAllowed), "everywhere; row 0 is what row 11 should be");
}

// Rows that are alike are no evidence for a swap.
TEST(Extent, SlicesThatAreAllAlikeSayNothing) {
  const at::Tensor wanted = at::ones({1, 4, 2, 3}, at::kDouble);
  at::Tensor v = wanted.clone();
  v.select(1, 2).fill_(2);
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "in row 2 alone; it is 2 times what it should be");
}

TEST(Extent, WhatIsNotFiniteIsOff) {
  const at::Tensor wanted = values({5, 6});
  at::Tensor v = wanted.clone();
  v.select(0, 4).fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(extent_of_error(v, wanted, kAllowed), "in row 4 alone; it is not finite there");
  EXPECT_EQ(extent_of_error(wanted, v, kAllowed), "in row 4 alone");
}

}  // namespace
}  // namespace suites::oracle
