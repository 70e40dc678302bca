// From findings to causes: which rule speaks, what it folds, and that nothing is ever left without a cause.
#include "reports/causes.hpp"

#include <gmock/gmock.h>

#include <limits>

#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Values = Clue::Values;

Finding found(const std::string& code, const std::string& message = "m", Json evidence = Json::object(),
              Severity severity = Severity::block) {
  return {code,           severity,      "numerics", code + " title", message, code + " cause",
          code + " next", "run " + code, evidence};
}

// One case for each list of findings; a case without any passed.
Run run_with(const std::vector<std::vector<Finding>>& cases) {
  reports::Run run = sample::run_of(std::vector<Status>(cases.size(), Status::pass));
  for (std::size_t i = 0; i < cases.size(); ++i) run.suites[0].cases[i].findings = cases[i];
  return run;
}

std::vector<std::string> ids(const Run& run) {
  std::vector<std::string> all;
  for (const LikelyCause& cause : run.causes) all.push_back(cause.id);
  return all;
}

TEST(Causes, AFindingWithoutARuleIsACauseOfItsOwnInTheWordsOfItsCode) {
  reports::Run run = run_with({{found("A")}, {}, {found("B", "b", {}, Severity::isolate), found("A")}});
  find_causes(run, {});
  EXPECT_THAT(ids(run), ElementsAre("B", "A")) << "the gravest leads";
  EXPECT_EQ(run.causes[1].what, "A title (A cause)");
  EXPECT_EQ(run.causes[1].confirm, "run A");
  EXPECT_THAT(run.causes[0].because, ElementsAre("alpha/case2: b"));
}

TEST(Causes, WhatFollowsIsFoldedAndTheRestStandsBeside) {
  const std::vector<CauseRule> rules{
      {.id = "c", .what = "it is c", .weight = 50, .clue = {{"A"}}, .explains = {{{"B"}}}}};
  reports::Run run = run_with({{found("B"), found("C")}, {found("A")}, {found("B")}});
  find_causes(run, rules);
  EXPECT_THAT(ids(run), ElementsAre("c", "C"));
  ASSERT_EQ(run.causes[0].consequences.size(), 1U);
  EXPECT_EQ(run.causes[0].consequences[0].code, "B");
  EXPECT_EQ(run.causes[0].consequences[0].findings, 2);
  EXPECT_EQ(run.suites[0].cases[0].findings[0].follows_from, "c");
  EXPECT_EQ(run.suites[0].cases[0].findings[1].follows_from, "");
}

TEST(Causes, TheHeavierRuleTakesTheFindingsAndTheLighterIsDropped) {
  const std::vector<CauseRule> rules{
      {.id = "light", .what = "l", .weight = 20, .clue = {{"A"}}},
      {.id = "heavy", .what = "h", .weight = 30, .clue = {{"B"}}, .explains = {{{"A"}}}}};
  reports::Run run = run_with({{found("A"), found("B")}});
  find_causes(run, rules);
  EXPECT_THAT(ids(run), ElementsAre("heavy"));
  run = run_with({{found("A")}});
  find_causes(run, rules);
  EXPECT_THAT(ids(run), ElementsAre("light"));
}

TEST(Causes, RulesThatExplainEachOtherTakeTheirTurnByWeight) {
  const std::vector<CauseRule> rules{{.id = "a", .what = "a", .weight = 20, .clue = {{"A"}}, .explains = {{{"B"}}}},
                                     {.id = "b", .what = "b", .weight = 20, .clue = {{"B"}}, .explains = {{{"A"}}}}};
  reports::Run run = run_with({{found("B"), found("A")}});
  find_causes(run, rules);
  EXPECT_THAT(ids(run), ElementsAre("a")) << "of equals the first of the table";
}

TEST(Causes, EvidenceChoosesTheRuleAndFillsItsSentence) {
  const std::vector<CauseRule> rules{{.id = "rope",
                                      .what = "{stage} of layer {layer} is wrong",
                                      .weight = 50,
                                      .clue = {.codes = {"A"}, .evidence = {{"stage", "*.q"}, {"layer", "*"}}}}};
  reports::Run run = run_with({{found("A", "m", {{"stage", "layers.1.q"}, {"layer", 1}})}});
  find_causes(run, rules);
  ASSERT_THAT(ids(run), ElementsAre("rope"));
  EXPECT_EQ(run.causes[0].what, "layers.1.q of layer 1 is wrong");
  for (const Json& other : {Json{{"stage", "layers.1.k"}, {"layer", 1}}, Json{{"stage", "layers.1.q"}}, Json()}) {
    run = run_with({{found("A", "m", other)}});
    find_causes(run, rules);
    EXPECT_THAT(ids(run), ElementsAre("A")) << other << ": what lacks its evidence says nothing";
  }
}

TEST(Causes, AValueMayBeAnyOtherThanOne) {
  const std::vector<CauseRule> rules{
      {.id = "r", .what = "r", .weight = 50, .clue = {.codes = {"A"}, .evidence = {{"branch", "!win"}}}}};
  reports::Run run = run_with({{found("A", "m", {{"branch", "win"}})}});
  find_causes(run, rules);
  EXPECT_THAT(ids(run), ElementsAre("A"));
  run = run_with({{found("A", "m", {{"branch", "cmp"}})}});
  find_causes(run, rules);
  EXPECT_THAT(ids(run), ElementsAre("r"));
}

TEST(Causes, NanIsToldFromAWrongNumberByTheEvidenceOrTheMessage) {
  const std::vector<CauseRule> rules{
      {.id = "nan", .what = "n", .weight = 50, .clue = {.codes = {"A"}, .values = Values::non_finite}},
      {.id = "off", .what = "o", .weight = 50, .clue = {.codes = {"A"}, .values = Values::finite}}};
  const auto id = [&](const Finding& f) {
    reports::Run run = run_with({{f}});
    find_causes(run, rules);
    return run.causes.at(0).id;
  };
  EXPECT_EQ(id(found("A", "loss is -nan")), "nan");
  EXPECT_EQ(id(found("A", "m", {{"at", {{"value", "Infinity"}}}})), "nan");
  Finding surroundings = found("A", ".HALT lies in out/s-nan/v2");
  EXPECT_EQ(id(surroundings), "nan");
  surroundings.category = "environment";
  EXPECT_EQ(id(surroundings), "off") << "a folder's name is no value";
  EXPECT_EQ(id(found("A", "information is nanometres off", {{"value", 3}})), "off");
}

TEST(Causes, CleanCasesAreAskedForAndTold) {
  const std::vector<CauseRule> rules{
      {.id = "r", .what = "r", .weight = 50, .clue = {{"A"}, "alpha/case0"}, .clean = {"alpha/case[12]"}}};
  reports::Run run = run_with({{found("A")}, {}, {}});
  find_causes(run, rules);
  ASSERT_THAT(ids(run), ElementsAre("r"));
  EXPECT_THAT(run.causes[0].because, testing::Contains("2 cases of alpha/case[12] passed"));
  run = run_with({{found("A")}, {}, {found("B")}});
  find_causes(run, rules);
  EXPECT_THAT(ids(run), ElementsAre("A", "B")) << "one of them failed";
  run = run_with({{found("A")}});
  find_causes(run, rules);
  EXPECT_THAT(ids(run), ElementsAre("A")) << "none of them ran";
  run.suites[0].cases.push_back(run.suites[0].cases[0]);
  run.suites[0].cases[1].id = "alpha/case1";
  run.suites[0].cases[1].findings.clear();
  run.suites[0].cases[1].status = Status::skip;
  find_causes(run, rules);
  EXPECT_THAT(ids(run), ElementsAre("A")) << "what was skipped was not clean";
}

TEST(Causes, WhatSpeaksAgainstARuleSilencesIt) {
  const std::vector<CauseRule> rules{{.id = "r", .what = "r", .weight = 50, .clue = {{"A"}}, .excluded_by = {{{"B"}}}}};
  reports::Run run = run_with({{found("A")}, {found("B")}});
  find_causes(run, rules);
  EXPECT_THAT(ids(run), ElementsAre("A", "B"));
}

TEST(Causes, WarningsHaveNoCauseAndAGreenRunHasNone) {
  reports::Run run = run_with({{found("A", "m", {}, Severity::warn)}, {found("B", "m", {}, Severity::info)}});
  find_causes(run, {});
  EXPECT_THAT(run.causes, IsEmpty());
}

TEST(Causes, FindingsOfTheWholeRunCount) {
  reports::Run run = run_with({{}});
  run.findings = {found("X")};
  find_causes(run, {});
  ASSERT_THAT(ids(run), ElementsAre("X"));
  EXPECT_THAT(run.causes[0].because, ElementsAre("m"));
}

TEST(Causes, ATableWithAFlawIsNamed) {
  const std::vector<std::string_view> known{"A"};
  const std::vector<CauseRule> rules{{.id = "a", .what = "{stage} is wrong", .weight = 50, .clue = {{"A"}}},
                                     {.id = "a", .what = "x", .weight = 10, .clue = {{"B"}}, .explains = {{{"C"}}}},
                                     {.id = "b", .what = "x", .weight = 50, .clue = {}, .excluded_by = {{{"D"}}}}};
  EXPECT_THAT(flaws(rules, known), ElementsAre("a: says {stage}, which its clue does not ask for", "a: stands twice",
                                               "a: weighs no more than a code alone (10)", "a: unknown code B",
                                               "a: unknown code C", "b: its clue names no code", "b: unknown code D"));
}

TEST(Causes, EveryTextLeadsWithTheLikeliestAndFoldsTheRest) {
  const std::vector<CauseRule> rules{
      {.id = "c", .what = "it is <c>", .weight = 50, .clue = {{"NSA-A"}}, .explains = {{{"NSA-B"}}}}};
  reports::Run run = run_with({{found("NSA-B")}, {found("NSA-A", "seen here")}, {found("NSA-C")}});
  find_causes(run, rules);
  const std::string md = to_markdown(run), html = to_html(run), console = to_console(run, false), junit = to_junit(run);
  EXPECT_THAT(md.substr(0, 300), HasSubstr("**Most likely: it is &lt;c>.**\n\n- because alpha/case1: seen here"));
  EXPECT_THAT(md, HasSubstr("| NSA-B NSA-B title | 1 | NSA-A |"));
  EXPECT_THAT(md, HasSubstr("2. NSA-C title (NSA-C cause). (NSA-C)"));
  EXPECT_THAT(md, testing::Not(HasSubstr("NSA-B NSA-B title - block"))) << "it is no finding of its own";
  EXPECT_THAT(console, HasSubstr("most likely: it is <c>.\n    because alpha/case1: seen here\n"));
  EXPECT_THAT(console, HasSubstr("follows NSA-B (1)"));
  EXPECT_THAT(html, HasSubstr("Most likely: it is &lt;c&gt;."));
  EXPECT_THAT(html, HasSubstr("<summary>One finding follows from NSA-A</summary>"));
  EXPECT_THAT(junit, HasSubstr("most likely: it is &lt;c&gt;."));
  EXPECT_EQ(to_json(run)["causes"][0]["consequences"][0]["code"], "NSA-B");
  EXPECT_EQ(to_json(run)["suites"][0]["cases"][0]["findings"][0]["follows_from"], "c");
}

}  // namespace
}  // namespace reports
