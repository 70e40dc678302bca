// Tiny cases worked out by hand pin the oracle; nothing here was produced by the code under test.
#include "nsa/reference/reference.hpp"

#include <torch/types.h>

#include <cmath>

#include "nsa/reference/masked_softmax.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa::reference {
namespace reference_test {

using fixtures::cu;
using fixtures::distance;
using fixtures::Inputs;
using fixtures::random;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One batch, one head, width 1: [values] -> [1,S,1,1].
at::Tensor column(const std::vector<double>& values) { return at::tensor(values, at::kDouble).view({1, -1, 1, 1}); }
std::vector<double> values_of(const at::Tensor& t) {
  const auto flat = t.to(at::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}
void expect_values(const at::Tensor& t, const std::vector<double>& wanted) {
  const auto got = values_of(t);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(wanted[i])) {
      EXPECT_EQ(got[i], wanted[i]) << i;
    } else {
      EXPECT_NEAR(got[i], wanted[i], 1e-12) << i;
    }
  }
}

// S = 7, l = 2, d = 1, l' = 2, n = 3, w = 3.
constexpr Geometry kHand{.l = 2, .d = 1, .l_sel = 2, .n_sel = 3, .w = 3};

TEST(Compress, AveragesOverlappingBlocks) {
  const auto k = column({1, 2, 3, 4, 5, 6, 7}), v = column({0, 10, 0, 10, 0, 10, 4});
  const auto kv = compress({k, v, kHand, {}, {}, {}});
  expect_values(kv.k, {1.5, 2.5, 3.5, 4.5, 5.5, 6.5});
  expect_values(kv.v, {5, 5, 5, 5, 5, 7});
  expect_values(compress({k, v, {4, 2, 4, 3, 3}, {}, {}, {}}).k, {2.5, 4.5});  // [0,4) and [2,6); [4,8) is not complete
  EXPECT_EQ(compress({k, v, {8, 2, 8, 3, 3}, {}, {}, {}}).k.size(1), 0);
}

TEST(Compress, NeverCrossesADocument) {
  const auto k = column({1, 2, 3, 4, 5, 6, 7});
  expect_values(compress({k, k, kHand, cu({0, 2, 3, 3, 7}), {}, {}}).k, {1.5, 4.5, 5.5, 6.5});
}

TEST(Compress, MlpByHand) {
  // D = 1, l = 2: hidden = a*(x0+p0) + b*(x1+p1), out = c * hidden * sigmoid(hidden).
  const PhiWeights phi{at::tensor({0.5, -0.5}, at::kDouble).view({2, 1}),
                       at::tensor({2.0, 1.0}, at::kDouble).view({1, 2}), at::tensor({3.0}, at::kDouble).view({1, 1})};
  const auto out = compress({column({1, 2, 4}), column({0, 0, 0}), kHand, {}, phi, {}});
  const auto expected = [](double x0, double x1) {
    const double hidden = 2 * (x0 + 0.5) + (x1 - 0.5);
    return 3 * hidden / (1 + std::exp(-hidden));
  };
  expect_values(out.k, {expected(1, 2), expected(2, 4)});
  expect_values(out.v, {0, 0});  // phi_v was not given: the mean
}

TEST(AttendCompressed, SeesOnlyCompleteBlocks) {
  // Equal scores: the output is the mean of the visible values. Block i is complete at token i + 1.
  const auto zero = at::zeros({1, 7, 1, 1}, at::kDouble);
  const auto kv = Compressed{at::zeros({1, 6, 1, 1}, at::kDouble), column({6, 12, 18, 24, 30, 36})};
  const auto out = attend_compressed({zero, kv, kHand, {}});
  expect_values(out.o, {0, 6, 9, 12, 15, 18, 21});
  expect_values(out.lse, {-kInfinity, 0, std::log(2), std::log(3), std::log(4), std::log(5), std::log(6)});
}

TEST(AttendCompressed, ScoresAreScaledAndNormalised) {
  // Dk = 4, so the scale is 1/2: q.k = 2 ln c gives weight c. Weights 1, 3 of values 8, 4: (8 + 12) / 4 = 5.
  const auto q = at::full({1, 3, 1, 4}, 1.0, at::kDouble);
  const auto k = at::zeros({1, 2, 1, 4}, at::kDouble);
  k[0][1][0][2] = 2 * std::log(3.0);
  const auto out = attend_compressed({q, {k, column({8, 4})}, kHand, {}});
  expect_values(out.o, {0, 8, 5});
  expect_values(out.lse, {-kInfinity, 0, std::log(4)});
  expect_values(compressed_probabilities(q, k, kHand), {0, 0, 1, 0, 0.25, 0.75});
}

TEST(OverlapWeights, FollowTheGeometry) {
  const auto seed = overlap_weights({}, 12, 3);  // 32/16/64
  expect_values(seed.select(1, 0), {2, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0});
  expect_values(seed.select(1, 1), {0, 0, 0, 1, 2, 2, 2, 1, 0, 0, 0, 0});
  expect_values(seed.select(1, 2), {0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 1});
  expect_values(overlap_weights({4, 4, 4, 3, 1}, 3, 3), {1, 0, 0, 0, 1, 0, 0, 0, 1});  // l = d = l': one to one
  expect_values(overlap_weights(kHand, 4, 2), {2, 0, 1, 1, 0, 2, 0, 1});               // [1,3) lies half in each
}

TEST(Importance, SumsOverBlocksAndHeads) {
  // Two heads of one group, two tokens, three compressed blocks [i, i+2), blocks of two tokens: weights
  // (2,0) (1,1) (0,2).
  const auto p = torch::tensor({{{1.0, 0.0, 0.0}, {0.5, 0.25, 0.25}}, {{0.0, 0.0, 0.0}, {0.0, 1.0, 0.0}}}, at::kDouble);
  const auto score = importance(p.unsqueeze(0), kHand, 1, 4);
  ASSERT_EQ(score.sizes(), at::IntArrayRef({1, 2, 1, 2}));
  expect_values(score, {2 + 0, 0 + 0, 1.25 + 1, 0.75 + 1});
}

std::vector<std::int64_t> chosen(const std::vector<double>& score, std::int64_t t, std::int64_t n) {
  const Geometry g{2, 1, 2, n, 3};
  const auto blocks = choose(at::tensor(score, at::kDouble).expand({1, t + 1, 1, -1}), g);
  EXPECT_EQ(blocks.scalar_type(), at::kInt);
  std::vector<std::int64_t> row;
  for (std::int64_t i = 0; i < n; ++i) row.push_back(blocks[0][t][0][i].item<std::int64_t>());
  return row;
}
using Row = std::vector<std::int64_t>;

TEST(Choose, ForcesFirstCurrentAndPrevious) {
  const std::vector<double> score{0, 9, 8, 7, 0, 0};
  EXPECT_EQ(chosen(score, 11, 3), (Row{0, 4, 5}));     // nothing is left for the others
  EXPECT_EQ(chosen(score, 10, 3), (Row{0, 4, 5}));     // token 10: the current block is partial and still in
  EXPECT_EQ(chosen(score, 11, 4), (Row{0, 1, 4, 5}));  // forced ones count inside n
  EXPECT_EQ(chosen(score, 11, 5), (Row{0, 1, 2, 4, 5}));
}

TEST(Choose, HasExactlyMinOfNAndTheBlocksSoFar) {
  const std::vector<double> score{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(chosen(score, 0, 4), (Row{0, -1, -1, -1}));
  EXPECT_EQ(chosen(score, 1, 4), (Row{0, -1, -1, -1}));
  EXPECT_EQ(chosen(score, 2, 4), (Row{0, 1, -1, -1}));  // first and previous are the same: no duplicate
  EXPECT_EQ(chosen(score, 5, 4), (Row{0, 1, 2, -1}));
  EXPECT_EQ(chosen(score, 7, 4), (Row{0, 1, 2, 3}));
  EXPECT_EQ(chosen(score, 9, 4), (Row{0, 2, 3, 4}));  // block 5 starts after the token, whatever its score
  EXPECT_EQ(chosen({1, 2}, 3, 4), (Row{0, 1, -1, -1}));
}

TEST(Choose, TiesGoToTheLowerNumber) {
  EXPECT_EQ(chosen({0, .5, .5, .5, 0, 0}, 11, 4), (Row{0, 1, 4, 5}));
  EXPECT_EQ(chosen({0, 0, 0, 0, 0, 0}, 11, 5), (Row{0, 1, 2, 4, 5}));
  EXPECT_EQ(chosen({0, .5, .5 + 1e-9, .5, 0, 0}, 11, 4), (Row{0, 2, 4, 5}));
  const double nan = std::nan("");
  EXPECT_EQ(chosen({nan, nan, nan, nan, nan, nan}, 11, 3), (Row{0, 4, 5}));  // nothing forced is lost
}

TEST(Select, PicksWhatTheQueryAttendsTo) {
  // Width 1, l = d = 1: a compressed block is a token. Token 5 answers the query, so its block 2 of
  // six is the one more.
  const Geometry g{1, 1, 2, 4, 3};
  const auto k = column({0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0});
  const auto blocks = select({at::ones({1, 12, 1, 1}, at::kDouble), k, g, {}});
  EXPECT_TRUE(at::equal(blocks[0][11][0], at::tensor({0, 2, 4, 5}, at::kInt)));
  EXPECT_TRUE(at::equal(blocks[0][8][0], at::tensor({0, 2, 3, 4}, at::kInt)));
  EXPECT_TRUE(at::equal(blocks[0][4][0], at::tensor({0, 1, 2, -1}, at::kInt)));
}

TEST(AttendSelected, ReadsTheChosenBlocksUpToTheToken) {
  const auto zero = at::zeros({1, 7, 1, 1}, at::kDouble);
  const auto v = column({1, 2, 4, 8, 16, 32, 64});
  const auto blocks =
      torch::tensor({{0, -1, -1}, {0, -1, -1}, {0, 1, -1}, {0, 1, -1}, {-1, -1, -1}, {0, 2, -1}, {0, 3, -1}}, at::kInt)
          .view({1, 7, 1, 3});
  const auto out = attend_selected({zero, zero, v, blocks, kHand, {}});
  expect_values(out.o, {1, 1.5, 7.0 / 3, 15.0 / 4, 0, 51.0 / 4, 67.0 / 3});
  expect_values(out.lse, {0, std::log(2), std::log(3), std::log(4), -kInfinity, std::log(4), std::log(3)});
}

TEST(AttendWindow, HasExactlyWTokens) {
  const auto zero = at::zeros({1, 7, 1, 1}, at::kDouble);
  const auto out = attend_window({zero, zero, column({1, 2, 4, 8, 16, 32, 64}), kHand, {}});
  expect_values(out.o, {1, 1.5, 7.0 / 3, 14.0 / 3, 28.0 / 3, 56.0 / 3, 112.0 / 3});
  expect_values(out.lse, {0, std::log(2), std::log(3), std::log(3), std::log(3), std::log(3), std::log(3)});
}

TEST(AttendWindow, HeadsBelongToTheirGroup) {
  // Head j reads group j / 2.
  const auto v = at::tensor({3.0, 5.0}, at::kDouble).view({1, 1, 2, 1});
  const auto zero = at::zeros({1, 1, 2, 1}, at::kDouble);
  expect_values(attend_window({at::zeros({1, 1, 4, 1}, at::kDouble), zero, v, kHand, {}}).o, {3, 3, 5, 5});
}

TEST(Combine, WeighsTheBranches) {
  const auto gates = at::tensor({.5, .25, .25, 0., 1., 0.}, at::kDouble).view({1, 1, 2, 3});
  const auto o = [](double a, double b) { return at::tensor({a, b}, at::kDouble).view({1, 1, 2, 1}); };
  expect_values(combine({gates, o(2, 3), o(4, 5), o(8, 7)}), {1 + 1 + 2, 5});
}

TEST(MaskedSoftmax, EmptyRowsAreZeroBothWays) {
  auto scores = random({3, 4}, 1).set_requires_grad(true);
  const auto visible = at::tensor({1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1}, at::kInt).view({3, 4}).to(at::kBool);
  const auto [p, lse] = masked_softmax(scores, visible);
  EXPECT_EQ(p[1].abs().max().item<double>(), 0.0);
  EXPECT_EQ(lse[1].item<double>(), -kInfinity);
  EXPECT_NEAR(p[0].sum().item<double>(), 1.0, 1e-12);
  const auto weight = random({3, 4}, 2);
  const auto gradient = torch::autograd::grad({(p * weight).sum() + lse[0] + lse[2]}, {scores})[0];
  EXPECT_TRUE(gradient.isfinite().all().item<bool>());
  EXPECT_EQ(gradient[1].abs().max().item<double>(), 0.0);
  EXPECT_EQ(gradient[0][1].item<double>(), 0.0);
}

TEST(Reference, PackedEqualsItsDocuments) {
  Inputs packed({.S = 60, .G = 2, .h = 2, .Dv = 5}, 3);
  packed.cu_seqlens = cu({0, 0, 1, 4, 41, 60});
  const auto kv = compress(packed.compress());
  const auto blocks = select(packed.select(kv));
  const auto cmp = attend_compressed(packed.compressed(kv));
  const auto sel = attend_selected(packed.selected(blocks));
  const auto win = attend_window(packed.window());
  std::int64_t first = 0;
  for (const auto& [begin, end] : documents(packed.cu_seqlens, 60)) {
    const std::int64_t S = end - begin;
    if (S == 0) continue;
    Inputs one = packed;
    one.cu_seqlens.reset();
    for (auto* t : {&one.q, &one.k, &one.v}) *t = t->narrow(1, begin, S);
    const auto own = compress(one.compress());
    EXPECT_TRUE(at::equal(kv.k.narrow(1, first, own.k.size(1)), own.k));
    first += own.k.size(1);
    EXPECT_TRUE(at::equal(blocks.narrow(1, begin, S), select(one.select(own))));
    EXPECT_LE(distance(cmp.o.narrow(1, begin, S), attend_compressed(one.compressed(own)).o), 1e-13);
    EXPECT_LE(distance(cmp.lse.narrow(2, begin, S), attend_compressed(one.compressed(own)).lse), 1e-13);
    EXPECT_LE(distance(sel.o.narrow(1, begin, S), attend_selected(one.selected(one.blocks())).o), 1e-13);
    EXPECT_LE(distance(win.o.narrow(1, begin, S), attend_window(one.window()).o), 1e-13);
  }
  EXPECT_EQ(first, kv.k.size(1));
  // p_cmp of the packed batch: nothing outside the own document.
  const auto p = compressed_probabilities(packed.q, kv.k, packed.g, packed.cu_seqlens);
  EXPECT_EQ(p.sizes(), at::IntArrayRef({1, 4, 60, kv.k.size(1)}));
  EXPECT_EQ(p.narrow(2, 41, 19).narrow(3, 0, compressed_blocks(packed.g, 37)).abs().max().item<double>(), 0.0);
}

TEST(Reference, StagesAreThoseOfTheSixFunctions) {
  const Inputs in({.B = 2, .S = 40, .G = 2, .h = 3}, 5);
  const auto s = stages({in.q, in.k, in.v, in.k, in.v, in.k, in.v, in.gates, in.g});
  EXPECT_TRUE(at::equal(s.blocks, select(in.select(s.compressed))));
  EXPECT_TRUE(at::equal(s.cmp.o, attend_compressed(in.compressed(s.compressed)).o));
  EXPECT_TRUE(at::equal(s.o, combine({in.gates, s.cmp.o, s.sel.o, s.win.o})));
  EXPECT_EQ(s.p_cmp.sizes(), at::IntArrayRef({2, 6, 40, 19}));
  EXPECT_EQ(s.importance.sizes(), at::IntArrayRef({2, 40, 2, 5}));
}

TEST(Reference, KeepsTheStorageTypeAndWideLse) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Inputs in({.S = 20}, 7, type);
    const auto win = attend_window(in.window());
    EXPECT_EQ(win.o.scalar_type(), type);
    EXPECT_EQ(win.lse.scalar_type(), at::kFloat);
    EXPECT_LE(distance(win.o, attend_window(in.wide().window()).o), fixtures::tolerance(type));
  }
}

}  // namespace reference_test
}  // namespace nsa::reference
