#include "suites/oracle/tiles.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

namespace suites::oracle {
namespace {

// bf16 as a good kernel gives it: off by two roundings of its own.
struct Results {
  at::Tensor exact = at::randn({2, 200, 3, 16}, at::kDouble);
  at::Tensor naive = exact.to(at::kBFloat16), good = (exact * (1 + 0.001 * at::randn_like(exact))).to(at::kBFloat16);
};

TEST(Tiles, RoundingPasses) {
  const Results r;
  EXPECT_TRUE(judge_tiles({r.good, r.exact, r.naive}, at::kBFloat16).good());
}

TEST(Tiles, WhatIsOffByLittleEverywhereIsFound) {
  const Results r;
  const TileVerdict verdict = judge_tiles({(r.good * 1.02).to(at::kBFloat16), r.exact, r.naive}, at::kBFloat16);
  EXPECT_FALSE(verdict.good());
  EXPECT_LT(verdict.error, 3 * verdict.bound);  // a largest error would not have shown it
}

TEST(Tiles, TheTileIsNamed) {
  const Results r;
  at::Tensor tail = r.good.clone();
  tail.select(0, 1).select(1, 2).slice(0, 192).mul_(1.05);  // the last 8 rows of one head
  const TileVerdict verdict = judge_tiles({tail, r.exact, r.naive}, at::kBFloat16);
  EXPECT_FALSE(verdict.good());
  EXPECT_EQ(verdict.batch, 1);
  EXPECT_EQ(verdict.row, 192);
  EXPECT_EQ(verdict.head, 2);
}

// A row of dQ as a whole by one random number, of a size that another head's shows.
TEST(Tiles, DqOfOneRowMayBeOffAsOtherHeadsAre) {
  const at::Tensor exact = at::randn({1, 65, 8, 64}, at::kDouble);
  at::Tensor naive = exact.to(at::kBFloat16), value = naive.clone();
  for (const auto& [t, head] : {std::pair{naive, 1}, {naive, 5}, {value, 3}}) t[0][64][head].mul_(1.03);
  EXPECT_TRUE(judge_tiles({value, exact, naive}, at::kBFloat16, /*of_queries=*/true).good());
  EXPECT_FALSE(judge_tiles({value, exact, naive}, at::kBFloat16).good()) << "of a value each head's own counts";
  value[0][64][3].mul_(1.3);
  EXPECT_FALSE(judge_tiles({value, exact, naive}, at::kBFloat16, /*of_queries=*/true).good());
  at::Tensor whole = exact.to(at::kBFloat16);
  whole.slice(1, 0, 64).select(2, 3).mul_(1.02);
  EXPECT_FALSE(judge_tiles({whole, exact, exact.to(at::kBFloat16)}, at::kBFloat16, /*of_queries=*/true).good())
      << "a whole tile has the bound of a value";
}

TEST(Tiles, NaNNeverPasses) {
  const Results r;
  at::Tensor bad = r.good.clone();
  bad[0][70][1][3] = std::numeric_limits<float>::quiet_NaN();
  const TileVerdict verdict = judge_tiles({bad, r.exact, r.naive}, at::kBFloat16);
  EXPECT_FALSE(verdict.good());
  EXPECT_EQ(verdict.row, 64);
  at::Tensor naive = r.naive.clone();
  naive[0][0][0][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(judge_tiles({r.good, r.exact, naive}, at::kBFloat16).good()) << "a bound that is NaN admits nothing";
}

TEST(Tiles, WhatIsMissingOrMisshapenIsSaid) {
  const Results r;
  EXPECT_TRUE(judge_tiles({{}, r.exact, r.naive}, at::kBFloat16).missing);
  EXPECT_FALSE(judge_tiles({{}, r.exact, r.naive}, at::kBFloat16).good());
  EXPECT_FALSE(judge_tiles({r.good.narrow(1, 0, 9), r.exact, r.naive}, at::kBFloat16).good());
}

}  // namespace
}  // namespace suites::oracle
