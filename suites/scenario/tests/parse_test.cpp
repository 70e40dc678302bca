// What is no scenario is refused by file and key, and nothing in one can name a path or a program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "suites/scenario/scenario.hpp"

namespace suites::scenario {
namespace parsing {

using testing::AllOf;
using testing::HasSubstr;

const Known kKnown = {{"parity", "training"}, {"leak", "halt"}, {"NSA-N005", "NSA-E005"},
                      {"future-leak"},        {"NSA_USE_FA2"},  {"run.seed", "parity.lengths"}};

const char* const kGood = R"({
  "schema": "nsa-validate/scenario", "schema_version": "1.2.0",
  "title": "t", "seed": "S9", "configuration": {"S": 128},
  "attempts": [
    {"name": "v1", "said": "first", "suites": ["parity"], "level": "standard"},
    {"name": "v2", "said": "second", "cases": ["parity/a*"], "excludes": ["parity/ab"], "model": "m.yaml",
     "settings": {"run.seed": "7"}, "flags": {"NSA_USE_FA2": "1"}, "inject": ["leak"], "inject_on_gpu": ["halt"], "gates": true}
  ],
  "verdict": "NOT READY", "exit_code": 1,
  "causes": [{"said": "c", "of": ["future-leak", "NSA-N005"], "names": ["x"]}],
  "facts": [
    {"id": "a", "said": "s", "looks": [{"kind": "finding", "code": "NSA-N005", "case": "parity/a*", "names": ["row"]}]},
    {"id": "b", "said": "s", "needs_gpu": "a device", "looks": [
      {"kind": "metric", "case": "parity/a*", "metric": "m", "at_least": 1, "at_most": 2},
      {"kind": "compared", "from": "v1", "to": "v2", "code": "NSA-N005", "change": "new"}]},
    {"id": "c", "said": "s", "beyond": "no network"}
  ]
})";

Scenario read(const std::string& text) { return parse(text, "day.json", "day", kKnown); }

std::string refusal(const std::string& text, bool incompatible = false) {
  try {
    (void)read(text);
  } catch (const ScenarioError& error) {
    EXPECT_EQ(error.incompatible, incompatible) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was taken: " << text;
  return "";
}

// The good one with `from` written as `to`.
std::string with(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Parse, AGoodOneIsReadWhole) {
  const Scenario day = read(kGood);
  EXPECT_EQ(day.name, "day");
  ASSERT_EQ(day.attempts.size(), 2u);
  EXPECT_EQ(day.attempts[0].level, "standard");
  EXPECT_EQ(day.attempts[1].flags.at("NSA_USE_FA2"), "1");
  EXPECT_TRUE(day.attempts[1].gates);
  EXPECT_THAT(day.attempts[1].inject_on_gpu, testing::ElementsAre("halt"));
  EXPECT_EQ(day.judged, "v2") << "the last, where none is named";
  EXPECT_EQ(day.causes.at(0).of.size(), 2u);
  ASSERT_EQ(day.facts.size(), 3u);
  EXPECT_EQ(day.facts[1].looks.at(0).wanted.at_most, 2);
  EXPECT_EQ(day.facts[1].looks.at(1).from, "v1");
  EXPECT_EQ(day.facts[2].beyond, "no network");
}

TEST(Parse, WhatIsDamagedOrForeignIsNeverTaken) {
  EXPECT_THAT(refusal(""), HasSubstr("day.json: is empty"));
  EXPECT_THAT(refusal(std::string(kGood).substr(0, 300)), HasSubstr("day.json: is damaged"));
  EXPECT_THAT(refusal(std::string(kGood) + "{}"), HasSubstr("is damaged"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is no JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("day.json: schema: is missing"));
  EXPECT_THAT(refusal(with("nsa-validate/scenario", "nsa-validate/report")),
              HasSubstr("schema: 'nsa-validate/report'"));
  EXPECT_THAT(refusal(with("1.2.0", "2.0.0"), /*incompatible=*/true), HasSubstr("schema_version: 2.0.0"));
  EXPECT_THAT(refusal(with(R"("title": "t")", R"("title": "t", "title": "u")")), HasSubstr("'title' stands twice"));
  EXPECT_THAT(refusal(with(R"("title": "t")", R"("title": "t)"
                                              "\xff"
                                              R"(")")),
              HasSubstr("damaged"));
}

TEST(Parse, WhatIsNotKnownIsNamedWithItsPlace) {
  EXPECT_THAT(refusal(with(R"("title")", R"("titel")")), HasSubstr("title: is missing"));
  EXPECT_THAT(refusal(with(R"("seed": "S9")", R"("seed": "S9", "sede": 1)")), HasSubstr("sede: is no key"));
  EXPECT_THAT(refusal(with(R"(["leak"])", R"(["laek"])")),
              AllOf(HasSubstr("attempts[1].inject: 'laek' is no planted fault"), HasSubstr("did you mean 'leak'?")));
  EXPECT_THAT(refusal(with(R"(["parity"])", R"(["paritie"])")), HasSubstr("attempts[0].suites: 'paritie'"));
  EXPECT_THAT(refusal(with(R"("code": "NSA-N005", "case")", R"("code": "NSA-N999", "case")")),
              HasSubstr("facts[0].looks[0].code: 'NSA-N999' is no finding code"));
  EXPECT_THAT(refusal(with(R"("of": ["future-leak")", R"("of": ["leak")")), HasSubstr("causes[0].of: 'leak'"));
  EXPECT_THAT(refusal(with(R"("kind": "finding")", R"("kind": "found")")), HasSubstr("looks[0].kind: 'found'"));
  EXPECT_THAT(refusal(with(R"("NSA_USE_FA2": "1")", R"("NSA_USE_FA": "1")")), HasSubstr("flags: 'NSA_USE_FA'"));
  EXPECT_THAT(refusal(with(R"("from": "v1")", R"("from": "v0")")), HasSubstr("facts[1].looks[1].from: 'v0'"));
  EXPECT_THAT(refusal(with(R"("change": "new")", R"("change": "came")")), HasSubstr("change: 'came'"));
  EXPECT_THAT(refusal(with(R"("names": ["row"])", R"("name": ["row"])")), HasSubstr("looks[0].name: is no key"));
}

TEST(Parse, WhatCouldNeverFailIsRefused) {
  EXPECT_THAT(refusal(with(R"(, "at_least": 1, "at_most": 2)", "")), HasSubstr("what is wanted?"));
  EXPECT_THAT(refusal(with(R"("at_most": 2)", R"("at_most": "2")")), HasSubstr("at_most: must be a finite number"));
  EXPECT_THAT(refusal(with(R"("from": "v1")", R"("from": "v2")")), HasSubstr("not compared with itself"));
  EXPECT_THAT(refusal(with(R"("exit_code": 1)", R"("exit_code": 0)")), HasSubstr("0 does not go with NOT READY"));
  EXPECT_THAT(refusal(with(R"("exit_code": 1)", R"("exit_code": 1, "exit_code_on_gpu": 0)")),
              HasSubstr("exit_code_on_gpu: 0 does not go with NOT READY"));
  EXPECT_THAT(refusal(with(R"("id": "b")", R"("id": "a")")), HasSubstr("facts[1].id: 'a' stands twice"));
  EXPECT_THAT(refusal(with(R"("name": "v2")", R"("name": "v1")")), HasSubstr("attempts[1].name: 'v1' stands twice"));
  EXPECT_THAT(refusal(with(R"("names": ["row"])", R"("names": [])")), HasSubstr("must be a list of texts"));
  EXPECT_THAT(refusal(with(R"("names": ["row"])", R"("names": [""])")), HasSubstr("none of them empty"));
  EXPECT_THAT(refusal(with(R"("beyond": "no network")", R"("beyond": "no network", "needs_gpu": "x")")),
              HasSubstr("beyond: what no run can show has no looks"));
}

// Nothing in a file is executed, and no path leads out of its folder.
TEST(Parse, NoPathAndNoProgram) {
  EXPECT_THAT(refusal(with("m.yaml", "../m.yaml")), HasSubstr("attempts[1].model: '../m.yaml' must be a file"));
  EXPECT_THAT(refusal(with("m.yaml", "/etc/passwd")), HasSubstr("must be a file in the scenario's own folder"));
  EXPECT_THAT(refusal(with(R"("run.seed": "7")", R"("python": "/bin/sh")")), HasSubstr("'python' is no setting"));
  EXPECT_THAT(refusal(with(R"("name": "v2")", R"("name": "../v2")")),
              HasSubstr("attempts[1].name: '../v2' is no name"));
  EXPECT_THAT(refusal(with(R"("parity/a*")", R"("--out")")), HasSubstr("'--out' is no case"));
}

}  // namespace parsing
}  // namespace suites::scenario
