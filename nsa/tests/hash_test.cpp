#include "nsa/train/hash.hpp"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <set>

namespace {

using nsa::train::Hash64;
using nsa::train::weights_hash;

std::uint64_t of(std::string_view text) {
  Hash64 hash;
  hash.add(text);
  return hash.value();
}

TEST(Hash64, PiecesDoNotMatter) {
  const std::string text = "The quick brown fox jumps over the lazy dog, twice over.";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); second += 3) {
      Hash64 hash;
      hash.add(text.substr(0, first));
      hash.add(text.substr(first, second - first));
      hash.add(text.substr(second));
      ASSERT_EQ(hash.value(), of(text)) << first << " " << second;
    }
  }
}

TEST(Hash64, EveryFlippedBitAndEveryLengthIsSeen) {
  const std::string text(40, 'a');
  std::set<std::uint64_t> seen = {of(text)};
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string other = text;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_TRUE(seen.insert(of(other)).second) << bit;
  }
  for (std::size_t size = 0; size < 40; ++size) EXPECT_TRUE(seen.insert(of(std::string(size, '\0'))).second) << size;
}

TEST(Hash64, HexHasSixteenDigits) {
  EXPECT_EQ(Hash64().hex().size(), 16U);
  EXPECT_EQ(Hash64().hex(), Hash64().hex());
}

TEST(WeightsHash, SeesValuesTypesAndShapes) {
  torch::nn::Linear a(3, 4), b(4, 3);
  const std::string before = weights_hash(*a);
  EXPECT_EQ(before.size(), 16U);
  EXPECT_EQ(weights_hash(*a), before);
  EXPECT_NE(weights_hash(*b), before);
  a->weight.detach()[1][1] += 1e-6;
  const std::string moved = weights_hash(*a);
  EXPECT_NE(moved, before);
  a->to(at::kDouble);
  EXPECT_NE(weights_hash(*a), moved);
  // The same values in another memory layout are the same weights.
  torch::nn::Linear plain(3, 4), strided(3, 4);
  strided->weight.set_data(plain->weight.detach().t().contiguous().t());
  strided->bias.set_data(plain->bias.detach());
  EXPECT_EQ(weights_hash(*plain), weights_hash(*strided));
}

}  // namespace
