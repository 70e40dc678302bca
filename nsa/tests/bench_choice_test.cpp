#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "nsa/bench/choice.hpp"

namespace nsa::bench {
namespace {

constexpr Geometry kSmall{.l = 4, .d = 2, .l_sel = 8, .n_sel = 5, .w = 6};

std::vector<std::int32_t> row(const at::Tensor& blocks, std::int64_t t, std::int64_t group) {
  const auto values = blocks[0][t][group].contiguous();
  return {values.data_ptr<std::int32_t>(), values.data_ptr<std::int32_t>() + values.size(0)};
}

TEST(BenchChoice, IsWhatASelectionMayGive) {
  for (const ChoiceKind kind : {ChoiceKind::random, ChoiceKind::drift})
    for (const std::int64_t S : {1, 8, 31, 200}) {
      const auto blocks = choose_blocks(kind, {S, 2, kSmall}, 3, at::kCPU);
      ASSERT_EQ(blocks.sizes(), (std::vector<std::int64_t>{1, S, 2, kSmall.n_sel}));
      ASSERT_EQ(blocks.scalar_type(), at::kInt);
      for (std::int64_t t = 0; t < S; ++t)
        for (std::int64_t group = 0; group < 2; ++group) {
          const auto got = row(blocks, t, group);
          const auto current = static_cast<std::int32_t>(t / kSmall.l_sel);
          const auto count = static_cast<std::size_t>(std::min<std::int64_t>(kSmall.n_sel, current + 1));
          const std::set<std::int32_t> chosen(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(count));
          EXPECT_EQ(chosen.size(), count) << "no number twice";
          EXPECT_TRUE(std::is_sorted(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(count)));
          for (std::size_t i = count; i < got.size(); ++i) EXPECT_EQ(got[i], -1);
          EXPECT_GE(*chosen.begin(), 0);
          EXPECT_LE(*chosen.rbegin(), current) << "none in the future";
          for (const auto forced : {0, std::max(0, current - 1), current}) EXPECT_TRUE(chosen.contains(forced));
        }
    }
}

// Of the blocks that are free to choose, how many a query shares with the one before it.
double shared(ChoiceKind kind) {
  constexpr std::int64_t kS = 2000, kFree = kSmall.n_sel - 3;
  const auto blocks = choose_blocks(kind, {kS, 1, kSmall}, 5, at::kCPU);
  double sum = 0;
  std::int64_t pairs = 0;
  for (std::int64_t t = 1001; t < kS; ++t) {
    if (t % kSmall.l_sel == 0) continue;  // the forced ones move on
    const auto before = row(blocks, t - 1, 0), now = row(blocks, t, 0);
    for (const auto block : now)
      if (block != 0 && block < t / kSmall.l_sel - 1) sum += std::count(before.begin(), before.end(), block);
    pairs += kFree;
  }
  return sum / static_cast<double>(pairs);
}

TEST(BenchChoice, NeighboursShareMostBlocksOnlyWhenTheyDrift) {
  EXPECT_LT(shared(ChoiceKind::random), 0.1);
  EXPECT_GT(shared(ChoiceKind::drift), 0.8);
}

TEST(BenchChoice, TheSameEveryTime) {
  const auto once = choose_blocks(ChoiceKind::random, {100, 2, kSmall}, 7, at::kCPU);
  EXPECT_TRUE(at::equal(once, choose_blocks(ChoiceKind::random, {100, 2, kSmall}, 7, at::kCPU)));
  EXPECT_FALSE(at::equal(once, choose_blocks(ChoiceKind::random, {100, 2, kSmall}, 8, at::kCPU)));
}

}  // namespace
}  // namespace nsa::bench
