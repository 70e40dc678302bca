#include "reports/chart.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <regex>

#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

Chart ladder() {
  return {"tokens per second by length",
          {"S", "tokens", true},
          {"throughput", "tok/s", false},
          {{"sdpa", {128, 256, 512}, {900, 1500, 2100}}, {"a <b> & c", {128, 512}, {1000, 5000}}}};
}

// The picture without what is shown in words when the mouse points at it.
std::string drawing(const Chart& chart) {
  static const std::regex kTooltip("<title>[^<]*</title>");
  return std::regex_replace(svg(chart), kTooltip, "");
}

std::size_t times_in(const std::string& text, const std::string& word) {
  std::size_t n = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

TEST(Chart, GoesThroughJsonAndBack) {
  Chart chart = ladder();
  chart.series[0].y[1] = kNoNumber;
  const auto back = chart_of(Json::parse(dump(to_json(chart))));
  ASSERT_TRUE(back);
  EXPECT_EQ(to_json(*back), to_json(chart));
  EXPECT_TRUE(back->x.log);
  EXPECT_TRUE(std::isnan(back->series[0].y[1]));
}

TEST(Chart, WhatIsNoChartIsNone) {
  const Json good = to_json(ladder());
  Json uneven = good, words = good, placeless = good;
  uneven["series"][0]["x"].push_back(1024);
  words["series"][0]["y"][0] = "fast";
  placeless["series"][0]["x"][0] = "NaN";
  for (const Json& fact : {uneven, words, placeless, Json(3), Json::object(), Json({{"chart", "only a title"}})})
    EXPECT_FALSE(chart_of(fact)) << dump(fact);
}

TEST(Chart, EveryPointIsDrawnTheNonFiniteAsACross) {
  Chart chart = ladder();
  EXPECT_EQ(times_in(svg(chart), "r=\"2.5\""), 5U);
  chart.series[0].y[1] = std::numeric_limits<double>::infinity();
  const std::string picture = drawing(chart);
  EXPECT_EQ(times_in(picture, "r=\"2.5\""), 4U);
  EXPECT_EQ(times_in(picture, "class=\"bad\""), 1U);
  EXPECT_THAT(picture, Not(HasSubstr("inf")));
  EXPECT_THAT(picture, Not(HasSubstr("nan")));
  EXPECT_THAT(picture, HasSubstr("a &lt;b&gt; &amp; c"));
}

// Three steps of 0.2 from -0.6 add up to 6e-17.
TEST(Chart, TheTickAtZeroIsZero) {
  const Chart chart{"loss", {"step", "", false}, {"change", "nat", false}, {{"text", {0, 1}, {-0.7, 0.25}}}};
  EXPECT_THAT(drawing(chart), testing::AllOf(HasSubstr(">-0.6<"), HasSubstr(">0<"), Not(HasSubstr("e-17"))));
}

TEST(Chart, DegenerateOnesAreDrawnToo) {
  for (const Chart& chart : {Chart{}, Chart{"one", {"x", "", true}, {"y", "", true}, {{"s", {1}, {0}}}},
                             Chart{"flat", {"x", "", false}, {"y", "", true}, {{"s", {1, 2}, {5, 5}}}},
                             Chart{"no number", {}, {}, {{"s", {1, 2}, {kNoNumber, kNoNumber}}}}}) {
    const std::string picture = drawing(chart);
    EXPECT_THAT(picture, Not(HasSubstr("nan"))) << chart.title;
    EXPECT_THAT(picture, Not(HasSubstr("inf"))) << chart.title;
    EXPECT_THAT(picture, testing::EndsWith("</svg>"));
  }
}

TEST(Chart, AsATable) {
  const Table table = table_of(ladder());
  EXPECT_THAT(table.head, ElementsAre("S [tokens]", "sdpa throughput [tok/s]", "a <b> & c throughput [tok/s]"));
  EXPECT_THAT(table.rows, ElementsAre(ElementsAre("128", "900", "1000"), ElementsAre("256", "1500", ""),
                                      ElementsAre("512", "2100", "5000")));
  Table longer;
  for (int i = 0; i < 101; ++i) longer.rows.push_back({std::to_string(i)});
  const Table thin = thinned(longer, 5);
  EXPECT_THAT(thin.rows, ElementsAre(ElementsAre("0"), ElementsAre("25"), ElementsAre("50"), ElementsAre("75"),
                                     ElementsAre("100")));
}

TEST(TableFact, IsAListOfFlatRows) {
  const auto table = table_of(Json::parse(R"([{"S": 128, "rows": [1, 2]}, {"S": 256, "why": "a|b"}])"));
  ASSERT_TRUE(table);
  EXPECT_THAT(table->head, ElementsAre("S", "rows", "why"));
  EXPECT_THAT(table->rows, ElementsAre(ElementsAre("128", "1, 2", ""), ElementsAre("256", "", "a|b")));
  for (const char* fact : {"[]", "[1, 2]", "[{}]", "{\"a\": 1}", "[{\"a\": 1}, 2]"})
    EXPECT_FALSE(table_of(Json::parse(fact))) << fact;
}

TEST(Chart, StandsInThePagesForReaders) {
  auto run = sample::run_of({Status::pass});
  run.suites[0].cases[0].facts = {{"ladder", to_json(ladder())}, {"rows", Json::parse(R"([{"S": 128}])")}};
  const std::string html = to_html(run), markdown = to_markdown(run);
  EXPECT_THAT(html, HasSubstr("<svg class=\"chart\""));
  EXPECT_THAT(html, HasSubstr("<th>S</th>"));
  EXPECT_THAT(markdown, HasSubstr("**tokens per second by length**"));
  EXPECT_THAT(markdown, HasSubstr("| 256 | 1500 |  |"));
}

}  // namespace
}  // namespace reports
