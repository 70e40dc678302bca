#include "nsa/train/deal.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using namespace nsa::train;
using ::testing::HasSubstr;

// Every row once, in order, whatever the number of rows and ranks.
TEST(Deal, NoRowTwiceAndNoneLeftOut) {
  for (std::int64_t rows = 1; rows <= 9; ++rows)
    for (int size = 1; size <= 5; ++size) {
      const Batch batch{at::arange(rows * 3).view({rows, 3}), {}};
      std::vector<at::Tensor> all;
      for (int rank = 0; rank < size; ++rank)
        if (const Batch share = share_of(batch, 0, rank, size); share.tokens.defined()) all.push_back(share.tokens);
      EXPECT_TRUE(at::equal(at::cat(all), batch.tokens)) << rows << " rows, " << size << " ranks";
    }
}

TEST(Deal, PackedBatchesGoWhole) {
  const Batch batch{at::arange(9).view({1, 9}), at::tensor({0, 4, 9}, at::kInt)};
  for (int place = 0; place < 6; ++place)
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(share_of(batch, place, rank, 3).tokens.defined(), place % 3 == rank);
}

TEST(Deal, WhatCannotBeSharedEvenly) {
  nsa::TrainConfig config;
  config.batch_size = 8;
  EXPECT_EQ(deal_refusal(config, 1), "");
  EXPECT_EQ(deal_refusal(config, 4), "");
  EXPECT_THAT(deal_refusal(config, 3), HasSubstr("train.batch_size = 8: 3 ranks"));
  EXPECT_THAT(deal_refusal(config, 3), HasSubstr("a multiple of 3: 6 or 9"));
  EXPECT_THAT(deal_refusal(config, 16), HasSubstr("a multiple of 16: 16"));
  config.packed = true;
  config.batch_size = 1;
  config.accumulate_grad_batches = 3;
  EXPECT_EQ(deal_refusal(config, 3), "");
  EXPECT_THAT(deal_refusal(config, 2), HasSubstr("train.accumulate_grad_batches = 3"));
}

}  // namespace
