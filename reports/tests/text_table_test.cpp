#include "reports/text_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reports::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(TextTable, ColumnsStandBelowTheirNumbers) {
  EXPECT_EQ(table("title", 2, {{"a", {"1", "two"}, "note"}, {"longer", {"33", "x"}}}, 9),
            "  title     1   2\n"
            "    a       1   two  note\n"
            "    longer  33  x\n");
  EXPECT_EQ(table("title", 2, {}, 9), "");
}

TEST(TextTable, CharactersCountNotBytes) {
  EXPECT_EQ(width("a\xc3\xa9\xe2\x82\xac"), 3U);
  EXPECT_EQ(padded("\xc3\xa9", 3), "\xc3\xa9  ");
  EXPECT_EQ(padded("long", 2), "long");
}

TEST(TextTable, AGroupIsALineOfItsOwnWhenItHasTwo) {
  EXPECT_EQ(table("t", 1, {{"a", {"1"}, "", "g"}, {"b", {"2"}, "", "g"}, {"c", {"3"}, "", "h"}}, 9),
            "  t       1\n"
            "    g\n"
            "      a   1\n"
            "      b   2\n"
            "    h: c  3\n");
}

TEST(TextTable, RowsThatSayTheSameFoldAndTheRestIsCounted) {
  std::vector<Row> rows;
  for (const char* name : {"a", "b", "c", "d"}) rows.push_back({name, {"x"}, "", "", "same"});
  EXPECT_THAT(table("t", 1, rows, 9), HasSubstr("    d  x\n")) << "one more is no shorter than its count";
  rows.push_back({"e", {"x"}, "", "", "same"});
  rows.push_back({"f", {"y"}});
  const std::string text = table("t", 1, rows, 9);
  EXPECT_THAT(text,
              HasSubstr("    c                      x\n    and 2 more like these\n    f                      y\n"));
  EXPECT_THAT(table("t", 1, rows, 2), testing::EndsWith("    and 3 more rows; --json has all\n"));
}

TEST(TextTable, TwoValuesThatDifferNeverLookAlike) {
  EXPECT_THAT(cells({0.1234567890, 0.1234567891}, "-", 40), ElementsAre("0.123456789", "0.1234567891"));
  EXPECT_THAT(cells({1.5, 2.5}, "-", 40), ElementsAre("1.5", "2.5"));
  const std::string path(60, 'p');
  EXPECT_THAT(cells({path + "one", path + "two"}, "-", 40), ElementsAre("...ppppppppone", "...pppppppptwo"));
  EXPECT_THAT(cells({path, nullptr}, "absent", 20), ElementsAre(std::string(20, 'p') + "...", "absent"));
  EXPECT_THAT(cells({"", nullptr, Json::array()}, "absent", 20), ElementsAre("\"\"", "absent", "none"));
  EXPECT_THAT(cells({true, "yes"}, "-", 20), ElementsAre("true", "\"yes\""));
  EXPECT_THAT(cells({"a b", "a\nb"}, "-", 20), ElementsAre("\"a b\"", "\"a\\nb\""));
  EXPECT_THAT(cells({path + "1", path + "2", "other"}, "-", 20), ElementsAre(path + "1", path + "2", "other"));
}

TEST(TextTable, WhatCompareMakesIsSaidInWords) {
  EXPECT_THAT(cells({{{"value", "7"}, {"origin", "--seed"}}}, "-", 40), ElementsAre("7 (--seed)"));
  EXPECT_THAT(cells({{{"status", "skip"}, {"reason_code", "no_cuda"}}}, "-", 40), ElementsAre("skip (no_cuda)"));
  EXPECT_THAT(cells({{{"pass", false}, {"comparator", "<="}, {"bound", 2}}}, "-", 40), ElementsAre("fails: <= 2"));
  EXPECT_THAT(cells({"NaN", 1}, "-", 40), ElementsAre("NaN", "1"));
}

TEST(TextTable, TextOfARunStaysOnItsLineAndBringsNoEscapes) {
  EXPECT_EQ(safe("a\nb\x1b[2J\x07", 80), "a b[2J");
  EXPECT_THAT(cells({"x\ny\x1b[31m"}, "-", 40), ElementsAre("x y[31m"));
}

}  // namespace
}  // namespace reports::text
