#include "suites/s_sweep/design.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "suites/s_sweep/cases.hpp"

namespace suites::s_sweep_cases {
namespace {

const Design::Allowed kAll = [](const Pair&) { return true; };

std::vector<Axis> axes_of(const std::vector<std::size_t>& sizes) {
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    axes.push_back({std::string(1, static_cast<char>('a' + i)), {}});
    for (std::size_t v = 0; v < sizes[i]; ++v) axes.back().values.push_back(std::to_string(v));
  }
  return axes;
}

std::size_t all_pairs(const Design& design) {
  std::size_t all = 0;
  for (std::size_t i = 0; i < design.axes.size(); ++i) {
    for (std::size_t j = i + 1; j < design.axes.size(); ++j) {
      all += design.axes[i].values.size() * design.axes[j].values.size();
    }
  }
  return all;
}

TEST(Design, HoldsEveryPairInFewPoints) {
  for (const auto& sizes : {std::vector<std::size_t>{3, 3, 3, 3}, {7, 5, 2, 4, 3}, {1, 1}, {12, 1, 2}}) {
    const Design design(axes_of(sizes), kAll);
    EXPECT_EQ(design.pairs, all_pairs(design));
    EXPECT_EQ(design.excluded, 0U);
    EXPECT_TRUE(design.impossible.empty());
    std::vector<std::size_t> sorted = sizes;
    std::sort(sorted.rbegin(), sorted.rend());
    const std::size_t least = sorted[0] * sorted[1];
    EXPECT_GE(design.points.size(), least);
    EXPECT_LE(design.points.size(), 2 * least);
  }
  EXPECT_THROW(Design(axes_of({2, 0}), kAll), std::invalid_argument);
}

TEST(Design, IsTheSameEveryTime) {
  EXPECT_EQ(Design(axes_of({4, 3, 5}), kAll).points, Design(axes_of({4, 3, 5}), kAll).points);
}

TEST(Design, KeepsApartWhatMayNotMeetAndSaysWhatCannot) {
  // a=0 goes with no b=0; c=0 asks for a=0 and b=0 both away, so that a=1 with b=1 are all that it can have.
  const auto allowed = [](const Pair& p) {
    if (p.first == 0 && p.second == 1) return !(p.a == 0 && p.b == 0);
    return !(p.first == 0 && p.second == 2 && p.b == 0 && p.a != 1) && !(p.first == 1 && p.b == 0 && p.a == 0);
  };
  const Design design(axes_of({2, 2, 2}), allowed);
  for (const Point& point : design.points) {
    EXPECT_FALSE(point[0] == 0 && point[1] == 0);
    EXPECT_FALSE(point[2] == 0 && (point[0] == 0 || point[1] == 0));
  }
  EXPECT_EQ(design.excluded, 3U);
  EXPECT_TRUE(design.impossible.empty());
  EXPECT_EQ(design.held(design.points), all_pairs(design) - 3);

  // Nothing on c can stand beside a=0 with b=0, though the two may meet.
  const auto nothing_left = [](const Pair& p) { return !(p.second == 2 && p.a == 0 && p.b == p.first); };
  const Design stuck(axes_of({2, 2, 2}), nothing_left);
  ASSERT_EQ(stuck.impossible.size(), 1U);
  EXPECT_EQ(stuck.impossible[0].a, 0U);
  EXPECT_EQ(stuck.impossible[0].b, 0U);
  EXPECT_EQ(stuck.held(stuck.points) + stuck.excluded + stuck.impossible.size(), all_pairs(stuck));
}

TEST(SeparatingValues, NameTheFewestThatDoIt) {
  const std::vector<Point> all = Design(axes_of({4, 3, 3}), kAll).points;
  const auto split = [&](const std::function<bool(const Point&)>& fails) {
    std::vector<Point> failing, passing;
    for (const Point& point : all) (fails(point) ? failing : passing).push_back(point);
    return separating_values(failing, passing);
  };
  EXPECT_EQ(split([](const Point& p) { return p[1] == 2; }), (std::vector<Shared>{{{1, 2}}}));
  // One point holds two values together: which two of its three they are cannot be told, and the right ones are named.
  const auto two = split([](const Point& p) { return p[0] == 1 && p[2] == 0; });
  EXPECT_NE(std::find(two.begin(), two.end(), (Shared{{0, 1}, {2, 0}})), two.end());
  EXPECT_TRUE(split([](const Point& p) { return p[0] == 1 || p[2] == 0; }).empty());
  EXPECT_TRUE(split([](const Point&) { return true; }).empty());
  EXPECT_TRUE(split([](const Point&) { return false; }).empty());
}

class Designs : public testing::TestWithParam<nsa::Geometry> {};

std::size_t place(const Axis& axis, const std::string& value) {
  const auto found = std::find(axis.values.begin(), axis.values.end(), value);
  EXPECT_NE(found, axis.values.end()) << value;
  return static_cast<std::size_t>(found - axis.values.begin());
}

TEST_P(Designs, HoldEveryLegalPairOfTheSweep) {
  const std::vector<double> scales = {1e-3, 1, 30, 120, 1e4};
  for (const Design& design : {op_design(GetParam(), scales), model_design(GetParam(), scales)}) {
    EXPECT_TRUE(design.impossible.empty());
    EXPECT_EQ(design.held(design.points) + design.excluded, all_pairs(design));
    EXPECT_LT(design.points.size(), 900U);
  }
  const Design ops = op_design(GetParam(), scales);
  EXPECT_EQ(ops.axes[0].name, "S");
  const std::size_t fp32 = place(ops.axes[4], "fp32"), poison = place(ops.axes[2], "poison");
  for (const Point& point : ops.points) {
    const std::string& computation = ops.axes[1].values[point[1]];
    const bool needs_16_bits = computation.starts_with("flash") || computation.starts_with("cuda");
    EXPECT_FALSE(needs_16_bits && point[4] == fp32) << ops.name(point);
    EXPECT_FALSE(point[2] == poison && ops.axes[5].values[point[5]] == "single") << ops.name(point);
  }
}

INSTANTIATE_TEST_SUITE_P(Geometries, Designs,
                         testing::Values(nsa::Geometry{.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32},
                                         nsa::Geometry{.l = 32, .d = 16, .l_sel = 64, .n_sel = 16, .w = 512}),
                         [](const auto& g) { return "l" + std::to_string(g.param.l); });

}  // namespace
}  // namespace suites::s_sweep_cases
