#include "nsa/train/text.hpp"

#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

namespace {

using nsa::train::RandomCrops;
using nsa::train::read_bytes;
using testing::HasSubstr;

std::filesystem::path corpus() {
  return std::filesystem::path(__FILE__).parent_path() / "../../fixtures/text/corpus.txt";
}

// 0, 1, 2, ... so that a crop shows where it starts.
at::Tensor counting_bytes(std::int64_t count) {
  at::Tensor bytes = at::empty({count}, at::kByte);
  for (std::int64_t i = 0; i < count; ++i) bytes[i] = i % 256;
  return bytes;
}

std::string refusal(const std::filesystem::path& file) {
  try {
    (void)read_bytes(file);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Text, ReadsBytesAsTheyAre) {
  const auto path = std::filesystem::path(testing::TempDir()) / "bytes.bin";
  std::ofstream(path, std::ios::binary) << std::string("a\0\r\n\xff z", 7);
  const at::Tensor bytes = read_bytes(path);
  ASSERT_EQ(bytes.scalar_type(), at::kByte);
  ASSERT_EQ(bytes.numel(), 7);
  EXPECT_EQ(bytes[1].item<int>(), 0);
  EXPECT_EQ(bytes[2].item<int>(), 13);
  EXPECT_EQ(bytes[4].item<int>(), 255);
}

TEST(Text, RefusalsNameFileAndReason) {
  const auto empty = std::filesystem::path(testing::TempDir()) / "empty.txt";
  std::ofstream(empty, std::ios::binary).flush();
  EXPECT_EQ(refusal("no/such/text"), "text no/such/text: does not exist");
  EXPECT_THAT(refusal(testing::TempDir()), HasSubstr("is not a regular file"));
  EXPECT_THAT(refusal(empty), HasSubstr("is empty"));
}

// The figures of fixtures/README.md; a checkout that converts line ends fails here.
TEST(Text, TheCorpusIsTheDescribedOne) {
  const at::Tensor bytes = read_bytes(corpus());
  EXPECT_EQ(bytes.numel(), 883028);
  const at::Tensor counts = at::bincount(bytes.to(at::kLong), {}, 256);
  EXPECT_EQ(counts.count_nonzero().item<std::int64_t>(), 76);
  EXPECT_EQ(counts['\n'].item<std::int64_t>(), 16235);
  const at::Tensor share = counts.to(at::kDouble).div(883028.0);
  EXPECT_NEAR(-share.mul(share.log()).nansum().item<double>(), 3.118945, 1e-6);  // nats a byte
  EXPECT_EQ(bytes.to(at::kLong).sum().item<std::int64_t>(), 79655469);
}

TEST(RandomCrops, EveryRowIsARunOfTheText) {
  RandomCrops crops(counting_bytes(1000), 5, 17, 1);
  for (int i = 0; i < 20; ++i) {
    const at::Tensor batch = crops.next();
    ASSERT_EQ(batch.sizes(), (at::IntArrayRef{5, 18}));
    ASSERT_EQ(batch.scalar_type(), at::kLong);
    const at::Tensor steps = batch.diff().remainder(256);
    EXPECT_TRUE(at::equal(steps, at::ones_like(steps)));
  }
}

TEST(RandomCrops, SameSeedSameCropsWhateverTorchDraws) {
  RandomCrops a(counting_bytes(1000), 3, 9, 7), b(counting_bytes(1000), 3, 9, 7), c(counting_bytes(1000), 3, 9, 8);
  const at::Tensor first = a.next();
  (void)at::rand({100});
  EXPECT_TRUE(at::equal(first, b.next()));
  EXPECT_FALSE(at::equal(first, c.next()));
  EXPECT_FALSE(at::equal(first, a.next()));
}

TEST(RandomCrops, ReachesBothEndsAndAllStartsEvenly) {
  RandomCrops crops(counting_bytes(12), 1, 4, 99);  // starts 0..7
  std::map<std::int64_t, int> starts;
  for (int i = 0; i < 8000; ++i) ++starts[crops.next()[0][0].item<std::int64_t>()];
  ASSERT_EQ(starts.size(), 8U);
  EXPECT_EQ(starts.begin()->first, 0);
  EXPECT_EQ(starts.rbegin()->first, 7);
  // 1000 expected each, standard deviation 30; the seed is fixed, so this cannot flicker.
  for (const auto& [start, count] : starts) EXPECT_NEAR(count, 1000, 150) << start;
}

TEST(RandomCrops, TextOfExactlyOneCrop) {
  RandomCrops crops(counting_bytes(6), 2, 5, 3);
  EXPECT_EQ(crops.next()[1][5].item<int>(), 5);
}

TEST(RandomCrops, Refusals) {
  EXPECT_THROW(RandomCrops(counting_bytes(5), 1, 5, 0), std::runtime_error);
  EXPECT_THROW(RandomCrops(counting_bytes(5), 0, 2, 0), std::runtime_error);
  EXPECT_THROW(RandomCrops(counting_bytes(5), 1, 0, 0), std::runtime_error);
  EXPECT_THROW(RandomCrops(counting_bytes(5).to(at::kLong), 1, 2, 0), std::runtime_error);
  try {
    RandomCrops(counting_bytes(5), 1, 5, 0);
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "text of 5 bytes is shorter than a crop: seq_len 5 needs 6");
  }
}

}  // namespace
