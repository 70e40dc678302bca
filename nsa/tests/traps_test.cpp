// Mistakes that implementations of NSA have made: one test each, for every backend that runs here, against numbers that
// are worked out in the test and not by another backend.
#include <cmath>
#include <set>

#include "nsa/sdpa/sdpa.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa {
namespace traps_test {

using fixtures::distance;
using fixtures::gradients;
using fixtures::Inputs;
using fixtures::kSmall;
using fixtures::random;

struct Way {
  const char* name;
  Ops ops;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class Traps : public ::testing::TestWithParam<Way> {
 protected:
  const Ops& ops = GetParam().ops;
  [[nodiscard]] bool differentiable() const { return std::string(GetParam().name) != "packed"; }
};

// v[t] = 2^t shows by its mean which tokens were read; equal scores make the output the mean.
at::Tensor powers(std::int64_t S) { return at::pow(2.0, at::arange(S, at::kDouble)).view({1, S, 1, 1}); }
at::Tensor zeros(std::int64_t S) { return at::zeros({1, S, 1, 1}, at::kDouble); }
double mean_of_powers(std::int64_t first, std::int64_t last) {
  return (std::pow(2.0, static_cast<double>(last + 1)) - std::pow(2.0, static_cast<double>(first))) /
         static_cast<double>(last + 1 - first);
}

TEST_P(Traps, TheLastQueryReadsEveryKeyNotTheFirstOnly) {
  // A mask aligned at the top left gives one late query the first key only.
  const std::int64_t S = 24;
  auto blocks = at::tensor({0, 1, 2}, at::kInt).expand({1, S, 1, 3}).contiguous();
  blocks.slice(1, 0, 8).slice(3, 1).fill_(-1);
  blocks.slice(1, 8, 16).slice(3, 2).fill_(-1);
  const at::NoGradGuard no_grad;
  const auto sel = ops.attend_selected({zeros(S), zeros(S), powers(S), blocks, kSmall, {}}).o;
  EXPECT_NEAR(sel[0][S - 1].item<double>() / mean_of_powers(0, S - 1), 1.0, 1e-12);
  const auto kv = Compressed{zeros(11), powers(11)};
  EXPECT_NEAR(ops.attend_compressed({zeros(S), kv, kSmall, {}}).o[0][S - 1].item<double>() / mean_of_powers(0, 10), 1.0,
              1e-12);
}

TEST_P(Traps, TheWindowHasWTokensNotOneMoreOrLess) {
  const at::NoGradGuard no_grad;
  const std::int64_t S = 40;
  for (const std::int64_t w : {1, 2, 6, 39, 40, 41}) {
    const auto o = ops.attend_window({zeros(S), zeros(S), powers(S), {4, 2, 8, 3, w}, {}}).o;
    for (std::int64_t t = 0; t < S; ++t)
      EXPECT_NEAR(o[0][t].item<double>() / mean_of_powers(std::max<std::int64_t>(0, t - w + 1), t), 1.0, 1e-12)
          << w << " " << t;
  }
}

TEST_P(Traps, ABlockCountsOnlyWhenItIsComplete) {
  const at::NoGradGuard no_grad;
  const std::int64_t S = 12;  // blocks [0,4) [2,6) [4,8) [6,10) [8,12), complete at 3, 5, 7, 9, 11
  const auto o = ops.attend_compressed({zeros(S), {zeros(5), powers(5)}, kSmall, {}}).o;
  for (std::int64_t t = 0; t < S; ++t) {
    const std::int64_t last = t < 3 ? -1 : (t - 3) / 2;
    const double wanted = last < 0 ? 0.0 : mean_of_powers(0, last);
    EXPECT_NEAR(o[0][t].item<double>(), wanted, 1e-12) << t;
  }
}

TEST_P(Traps, ImportanceIsNormalisedOverTheVisibleBlocksOnly) {
  // The heads disagree: head 0 likes block 1, head 1 likes block 2 a little more, of probabilities normalised over the
  // past. A huge key in the future would drown head 1's say if it were in the sum.
  const Geometry g{1, 1, 1, 4, 1};  // one token a block, compressed and selected alike
  auto q = at::zeros({1, 8, 2, 2}, at::kDouble), k = at::zeros({1, 8, 1, 2}, at::kDouble);
  q.select(2, 0).select(2, 0).fill_(1.0);
  q.select(2, 1).select(2, 1).fill_(1.0);
  k[0][1][0][0] = 3.0;
  k[0][2][0][1] = 3.5;
  const auto before = ops.select({q, k, g, {}})[0][6][0].clone();
  EXPECT_TRUE(at::equal(before, at::tensor({0, 2, 5, 6}, at::kInt))) << before;
  k[0][7][0][1] = 50.0;  // token 7 is after token 6
  EXPECT_TRUE(at::equal(ops.select({q, k, g, {}})[0][6][0], before));
}

TEST_P(Traps, ForcedBlocksStayWhereTheCurrentBlockIsPartial) {
  const auto q = random({1, 61, 2, 8}, 1), k = random({1, 29, 1, 8}, 2);
  const auto blocks = ops.select({q, k, {4, 2, 8, 4, 6}, {}}).to(at::kLong);
  for (std::int64_t t = 0; t < 61; ++t) {
    std::set<std::int64_t> row;
    std::int64_t previous = -1;
    for (std::int64_t i = 0; i < 4; ++i) {
      const auto number = blocks[0][t][0][i].item<std::int64_t>();
      if (number < 0) continue;
      EXPECT_GT(number, previous) << t;  // ascending, no duplicates
      EXPECT_LE(number * 8, t);
      previous = number;
      row.insert(number);
    }
    EXPECT_EQ(static_cast<std::int64_t>(row.size()), std::min<std::int64_t>(4, t / 8 + 1)) << t;
    for (const std::int64_t forced : {std::int64_t{0}, t / 8, std::max<std::int64_t>(0, t / 8 - 1)})
      EXPECT_TRUE(row.contains(forced)) << t;
  }
}

TEST_P(Traps, TiesBelowAnyEpsilonGoToTheLowerBlock) {
  // Scores of 0.5 and of 0.5 + 1e-7 differ in fp32, equal ones do not: 1e-8 added to break ties would be lost.
  const auto q = at::zeros({1, 96, 1, 8}, at::kFloat), k = at::zeros({1, 96, 1, 8}, at::kFloat);
  const auto blocks = ops.select({q, k, {1, 1, 8, 5, 6}, {}});
  EXPECT_TRUE(at::equal(blocks[0][95][0], at::tensor({0, 1, 2, 10, 11}, at::kInt))) << blocks[0][95][0];
}

TEST_P(Traps, EmptyRowsAreZeroForwardAndBackward) {
  Inputs in({.B = 1, .S = 20, .G = 2, .h = 2}, 3);
  auto blocks = in.blocks();
  blocks.select(1, 7).fill_(-1);
  blocks.select(1, 19).fill_(-1);
  if (differentiable()) in.require_gradients();
  const auto sel = ops.attend_selected(in.selected(blocks));
  const auto cmp = ops.attend_compressed(in.compressed(ops.compress(in.compress())));
  for (const std::int64_t t : {7, 19}) EXPECT_EQ(sel.o[0][t].abs().max().item<double>(), 0.0);
  for (std::int64_t t = 0; t < 3; ++t) EXPECT_EQ(cmp.o[0][t].abs().max().item<double>(), 0.0);
  if (!differentiable()) return;
  for (const auto& [o, empty] : {std::pair{sel.o, std::vector<std::int64_t>{7, 19}}, {cmp.o, {0, 1, 2}}}) {
    const auto d = gradients(o, in, 4);
    for (const auto& gradient : d) EXPECT_TRUE(gradient.isfinite().all().item<bool>());
    for (const auto t : empty) EXPECT_EQ(d[0][0][t].abs().max().item<double>(), 0.0) << t;
  }
}

TEST_P(Traps, HugeScoresDoNotOverflow) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    Inputs in({.B = 1, .S = 40, .G = 2, .h = 2}, 5, type);
    in.q = in.q * 3000.0;
    const at::NoGradGuard no_grad;
    const auto kv = ops.compress(in.compress());
    EXPECT_TRUE(ops.attend_compressed(in.compressed(kv)).o.isfinite().all().item<bool>());
    EXPECT_TRUE(ops.attend_selected(in.selected(ops.select(in.select(kv)))).o.isfinite().all().item<bool>());
    EXPECT_TRUE(ops.attend_window(in.window()).o.isfinite().all().item<bool>());
  }
}

TEST_P(Traps, NaNIsNeverWipedAway) {
  Inputs in({.B = 1, .S = 40, .G = 2, .h = 2}, 6);
  in.v[0][20][1].fill_(std::nan(""));
  const at::NoGradGuard no_grad;
  const auto blocks = in.blocks();
  EXPECT_TRUE(ops.attend_window(in.window()).o[0][20][3].isnan().all().item<bool>());
  EXPECT_TRUE(ops.attend_selected(in.selected(blocks)).o[0][20][3].isnan().all().item<bool>());
  EXPECT_TRUE(ops.compress(in.compress()).v.isnan().any().item<bool>());
  EXPECT_TRUE(ops.attend_window(in.window()).o[0][20][0].isfinite().all().item<bool>());  // the other group
}

TEST_P(Traps, EveryLayoutAxisIsWhereItBelongs) {
  // All sizes differ, so that no two axes can be swapped unnoticed; head 5 (of 6, in 3 groups) is worked out by hand.
  Inputs in({.B = 2, .S = 11, .G = 3, .h = 2, .Dk = 5, .Dv = 7}, 8);
  const at::NoGradGuard no_grad;
  const auto o = ops.attend_window(in.window()).o;
  ASSERT_EQ(o.sizes(), at::IntArrayRef({2, 11, 6, 7}));
  const auto k = in.k[1].select(1, 2).narrow(0, 5, 6), v = in.v[1].select(1, 2).narrow(0, 5, 6);  // tokens 5..10
  const auto p = at::softmax(at::mv(k, in.q[1][10][5]) / std::sqrt(5.0), 0);
  EXPECT_LE(distance(o[1][10][5], at::mv(v.t(), p)), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Ways, Traps,
                         ::testing::Values(Way{"reference", reference::ops()},
                                           Way{"packed", sdpa::ops(sdpa::Selection::packed)},
                                           Way{"packed_safe", sdpa::ops(sdpa::Selection::packed_safe)},
                                           Way{"masked", sdpa::ops(sdpa::Selection::masked)}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace traps_test
}  // namespace nsa
