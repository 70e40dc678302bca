// The search for smaller sizes, with failures that are formulas.
#include "harness/minimise.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace harness {
namespace {

using testing::ElementsAre;

struct Search {
  std::vector<Size> best;
  int tries = 0;
  bool stopped = false;
};

Search search(std::vector<Size> start,
              const std::function<Tried(const std::map<std::string, std::vector<std::int64_t>>&)>& answer,
              int most = 1000) {
  Search found;
  Minimiser minimiser(std::move(start), [&](const std::vector<Size>& sizes, const std::string& change) {
    EXPECT_NE(change, "");
    if (found.tries == most) return Tried::stop;
    ++found.tries;
    std::map<std::string, std::vector<std::int64_t>> values;
    for (const Size& size : sizes) {
      values[size.key] = size.value;
      EXPECT_FALSE(size.value.empty()) << size.key;
      for (const std::int64_t value : size.value) EXPECT_GE(value, size.smallest) << size.key;
    }
    return answer(values);
  });
  found.best = minimiser.run();
  found.stopped = minimiser.stopped();
  return found;
}

Tried same_if(bool same) { return same ? Tried::same : Tried::other; }

TEST(Minimise, WhatHasNoInfluenceBecomesTheSmallest) {
  const Search found = search({{"a", 1, false, {64}}, {"b", 3, false, {512}}}, [](const auto&) { return Tried::same; });
  EXPECT_EQ(found.best.at(0).value, std::vector<std::int64_t>{1});
  EXPECT_EQ(found.best.at(1).value, std::vector<std::int64_t>{3});
}

TEST(Minimise, ALimitIsFoundToTheUnitAndNothingBelowItIsTaken) {
  const Search found = search({{"a", 1, false, {64}}}, [](auto v) { return same_if(v["a"][0] >= 37); });
  EXPECT_EQ(found.best.at(0).value[0], 37);
  EXPECT_LT(found.tries, 20);
}

TEST(Minimise, SizesThatGoTogetherOnlyAreHalvedTogether) {  // d divides l divides l_sel, as a configuration demands
  const Search found =
      search({{"nsa.l_sel", 1, false, {64}}, {"nsa.l", 1, false, {32}}, {"nsa.d", 1, false, {16}}}, [](auto v) {
        const auto l_sel = v["nsa.l_sel"][0], l = v["nsa.l"][0], d = v["nsa.d"][0];
        if (l_sel % d != 0 || l % d != 0 || l > l_sel || l != 2 * d) return Tried::refused;
        return same_if(d >= 4);
      });
  EXPECT_EQ(found.best.at(2).value[0], 4);
  EXPECT_EQ(found.best.at(1).value[0], 8);
  EXPECT_EQ(found.best.at(0).value[0], 8);
}

TEST(Minimise, ElementsOfAListAreLeftOutAndTheRestIsMadeSmaller) {
  const Search found = search({{"lengths", 1, true, {128, 512, 1024, 2048}}}, [](auto v) {
    return same_if(std::any_of(v["lengths"].begin(), v["lengths"].end(), [](auto n) { return n % 512 == 0; }));
  });
  EXPECT_THAT(found.best.at(0).value, ElementsAre(512));
}

TEST(Minimise, TwoElementsThatAreNeededStay) {
  const Search found = search({{"lengths", 1, true, {1, 7, 9, 100, 200}}}, [](auto v) {
    const auto& all = v["lengths"];
    return same_if(std::count(all.begin(), all.end(), 7) > 0 && *std::max_element(all.begin(), all.end()) > 7);
  });
  EXPECT_EQ(found.best.at(0).value.size(), 2U);
  EXPECT_THAT(found.best.at(0).value, ElementsAre(7, 8));
}

TEST(Minimise, NothingSmallerMeansTheStart) {
  const std::vector<Size> start = {{"a", 1, false, {64}}, {"l", 1, true, {5, 6}}};
  const Search found = search(start, [](const auto&) { return Tried::other; });
  EXPECT_EQ(found.best, start);
  EXPECT_FALSE(found.stopped);
}

TEST(Minimise, TheBestSoFarIsKeptWhenItIsStopped) {
  for (int most = 0; most < 8; ++most) {
    const Search found = search(
        {{"a", 1, false, {1024}}}, [](auto v) { return same_if(v["a"][0] >= 100); }, most);
    EXPECT_TRUE(found.stopped) << most;
    EXPECT_EQ(found.tries, most);
    EXPECT_GE(found.best.at(0).value[0], 100);
  }
}

TEST(Minimise, NothingIsTriedTwice) {
  std::map<std::string, int> seen;
  const Search found = search({{"a", 1, false, {97}}, {"b", 1, false, {61}}, {"l", 2, true, {9, 30, 31}}}, [&](auto v) {
    std::string text;
    for (const auto& [key, values] : v)
      for (const auto n : values) text += std::to_string(n) + ",";
    EXPECT_EQ(++seen[text], 1) << text;
    return same_if(v["a"][0] * v["b"][0] >= 300);
  });
  EXPECT_GE(found.best.at(0).value[0] * found.best.at(1).value[0], 300);
}

}  // namespace
}  // namespace harness
