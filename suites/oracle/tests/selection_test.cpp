#include "suites/oracle/selection.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "nsa/reference/reference.hpp"

namespace suites::oracle {
namespace {

// l' = 2 and n = 4: query t sees blocks 0 .. t/2; blocks 0, t/2 and t/2 - 1 are forced, one is free.
const nsa::Geometry kGeometry{.l = 2, .d = 1, .l_sel = 2, .n_sel = 4, .w = 4};
constexpr std::int64_t kQuery = 11;  // candidates 0..5, free among 1, 2, 3

SelectionVerdict judge_one(const std::vector<int>& chosen, const std::vector<double>& scores,
                           const std::vector<int>& reference = {0, 2, 4, 5}) {
  SelectionArgs args;
  args.geometry = kGeometry;
  args.chosen = at::full({1, kQuery + 1, 1, 4}, -1, at::kInt);
  args.reference = at::full({1, kQuery + 1, 1, 4}, -1, at::kInt);
  for (std::int64_t t = 0; t < kQuery;
       ++t) {  // earlier queries: all their blocks, or the four lowest-numbered legal ones
    const std::int64_t current = t / 2;
    std::vector<std::int64_t> blocks;
    for (std::int64_t b = 0; b <= current; ++b) {
      if (b == 0 || b >= current - 1 || b == 1) blocks.push_back(b);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      args.chosen[0][t][0][static_cast<std::int64_t>(i)] = blocks[i];
      args.reference[0][t][0][static_cast<std::int64_t>(i)] = blocks[i];
    }
  }
  args.scores = at::zeros({1, kQuery + 1, 1, 6}, at::kDouble);
  for (std::int64_t i = 0; i < 6; ++i) args.scores[0][kQuery][0][i] = scores[static_cast<std::size_t>(i)];
  for (std::int64_t i = 0; i < 4; ++i) {
    args.chosen[0][kQuery][0][i] = chosen[static_cast<std::size_t>(i)];
    args.reference[0][kQuery][0][i] = reference[static_cast<std::size_t>(i)];
  }
  return judge_selection(args);
}

const std::vector<double> kScores = {0.1, 0.2, 0.9, 0.3, 0.0, 0.0};

TEST(JudgeSelection, AcceptsTheTop) {
  const SelectionVerdict verdict = judge_one({0, 2, 4, 5}, kScores);
  EXPECT_TRUE(verdict.good());
  EXPECT_EQ(verdict.queries, kQuery + 1);
  EXPECT_EQ(verdict.differing, 0);
}

TEST(JudgeSelection, ExcusesATieWithinRoundingOnly) {
  const SelectionVerdict tie = judge_one({0, 3, 4, 5}, {0.1, 0.2, 0.9, 0.9 - 1e-9, 0, 0});
  EXPECT_TRUE(tie.good());
  EXPECT_EQ(tie.differing, 1);
  EXPECT_GT(tie.widest_tie, 0);
  const SelectionVerdict wrong = judge_one({0, 3, 4, 5}, {0.1, 0.2, 0.9, 0.899, 0, 0});
  EXPECT_FALSE(wrong.good());
  EXPECT_EQ(wrong.first["query"], kQuery);
}

TEST(JudgeSelection, RefusesEveryBrokenRule) {
  const auto fault = [](const std::vector<int>& chosen) {
    const SelectionVerdict verdict = judge_one(chosen, kScores);
    EXPECT_EQ(verdict.unjustified, 1);
    return verdict.first_fault;
  };
  EXPECT_NE(fault({2, 3, 4, 5}).find("forced block 0"), std::string::npos);
  EXPECT_NE(fault({0, 2, 3, 5}).find("forced block 4"), std::string::npos);
  EXPECT_NE(fault({0, 2, 3, 4}).find("forced block 5"), std::string::npos);
  EXPECT_NE(fault({0, 2, 4, 6}).find("starts after the query"), std::string::npos);
  EXPECT_NE(fault({0, 4, 4, 5}).find("not ascending"), std::string::npos);
  EXPECT_NE(fault({0, 4, 5, -1}).find("3 blocks instead of 4"), std::string::npos);
  EXPECT_NE(fault({0, -1, 4, 5}).find("after the -1"), std::string::npos);
}

TEST(JudgeSelection, ANanScoreJustifiesNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(judge_one({0, 1, 4, 5}, {0.1, nan, nan, nan, 0, 0}).good());
}

// What chooses is nsa/reference, from scores that are made wrongly here.
TEST(MistakeInChoice, IsToldByWhatItGives) {
  const nsa::Geometry g{.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 16};
  constexpr std::int64_t S = 120, G = 2, h = 2, D = 8;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto normal = [&](at::IntArrayRef shape) {
    return at::randn(shape, generator, at::TensorOptions(at::kDouble));
  };
  const at::Tensor q = 2 * normal({1, S, G * h, D}), k = normal({1, (S - g.l) / g.d + 1, G, D});
  const auto choice = [&](const at::Tensor& queries, const std::function<at::Tensor(const at::Tensor&)>& change) {
    const at::Tensor p = nsa::reference::compressed_probabilities(queries, k, g);
    return nsa::reference::choose(change(nsa::reference::importance(p, g, G, S)), g);
  };
  const auto same = [](const at::Tensor& scores) { return scores; };
  const auto told = [&](const at::Tensor& chosen) { return mistake_in_choice(chosen, q, k, g); };
  EXPECT_THAT(told(choice(q, same)), testing::HasSubstr("it were right"));
  EXPECT_EQ(told(choice(q * std::sqrt(8.0), same)), "the scores were not divided by sqrt(Dk)");
  EXPECT_EQ(told(choice(q, [](const at::Tensor& s) { return s.mean(2, true).expand_as(s).contiguous(); })),
            "all groups shared one choice");
  EXPECT_EQ(told(choice(q, [](const at::Tensor& s) { return -s; })), "the lowest scores were chosen");
  EXPECT_EQ(told(choice(-q, same)), "");  // a mistake that is not known
}

}  // namespace
}  // namespace suites::oracle
