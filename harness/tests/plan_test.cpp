#include "harness/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using harness::Case;
using harness::Level;
using harness::make_plan;
using harness::Plan;
using harness::Program;
using harness::Selection;
using harness::Settings;
using harness::Suite;
using harness::UsageError;
using testing::ElementsAre;
using testing::HasSubstr;

Suite suite(const std::string& name, std::vector<std::string> required = {}) {
  return {name, "purpose", std::move(required), [](const Settings&) {
            std::vector<Case> cases(3);
            cases[0].name = "quick";
            cases[1].name = "quick";
            cases[1].params = {{"S", "128"}};
            cases[2].name = "thorough";
            cases[2].level = Level::standard;
            return cases;
          }};
}

Program program() {
  Program p;
  p.suites = {suite("late", {"early"}), suite("early"), suite("later", {"late"}), suite("free")};
  return p;
}

std::vector<std::string> ids(const Selection& selection) {
  std::vector<std::string> result;
  for (const auto& s : make_plan(program(), Settings({}), selection).suites)
    for (const auto& c : s.cases) result.push_back(c.id);
  return result;
}

std::string error_of(const Selection& selection) {
  try {
    (void)ids(selection);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Plan, RequiredSuitesRunBefore) {
  std::vector<std::string> names;
  const Program p = program();
  for (const Suite* s : harness::running_order(p.suites)) names.push_back(s->name);
  EXPECT_THAT(names, ElementsAre("early", "late", "later", "free"));
}

TEST(Plan, LevelsNest) {
  EXPECT_EQ(ids({}).size(), 8U);
  EXPECT_EQ(ids({{"smoke"}, "", {}, {}}).size(), 8U);
  EXPECT_EQ(ids({{"standard"}, "", {}, {}}).size(), 12U);
  EXPECT_THAT(ids({{"free"}, "standard", {}, {}}), ElementsAre("free/quick", "free/quick[S=128]", "free/thorough"));
}

TEST(Plan, CasesByIdHashAndPattern) {
  EXPECT_THAT(ids({{}, "", {"free/quick[S=128]"}, {}}), ElementsAre("free/quick[S=128]"));
  EXPECT_THAT(ids({{}, "", {harness::case_hash("free/quick")}, {}}), ElementsAre("free/quick"));
  EXPECT_THAT(ids({{}, "", {"l*/quick"}, {}}), ElementsAre("late/quick", "later/quick"));
  EXPECT_THAT(ids({{"free"}, "", {}, {"*[S=???]"}}), ElementsAre("free/quick"));
  EXPECT_THAT(ids({{"free"}, "", {"*quick"}, {}}), ElementsAre("free/quick"));
}

TEST(Plan, AnExactNameFindsACaseWhateverItsLevel) {
  EXPECT_THAT(ids({{}, "", {"free/thorough"}, {}}), ElementsAre("free/thorough"));
  EXPECT_TRUE(ids({{}, "smoke", {"free/thorough"}, {}}).empty());
  EXPECT_TRUE(ids({{}, "", {"*/thorough"}, {}}).empty());
}

TEST(Plan, PartialSaysThatSomethingOfTheLevelWasLeftOut) {
  const Program p = program();
  const Settings settings({});
  EXPECT_FALSE(make_plan(p, settings, {{"smoke"}, "", {}, {}}).partial);
  EXPECT_TRUE(make_plan(p, settings, {{"free"}, "", {}, {}}).partial);
  EXPECT_TRUE(make_plan(p, settings, {{}, "", {}, {"free/quick"}}).partial);
  EXPECT_FALSE(make_plan(p, settings, {{}, "", {}, {"free/thorough"}}).partial);
}

TEST(Plan, UnknownNamesAreErrorsWithTheNearest) {
  EXPECT_THAT(error_of({{"eary"}, "", {}, {}}), HasSubstr("unknown suite or level 'eary'; did you mean 'early'?"));
  EXPECT_THAT(error_of({{"smoke", "free"}, "", {}, {}}), HasSubstr("'smoke' is a level and stands alone"));
  EXPECT_THAT(error_of({{"smoke", "standard"}, "", {}, {}}), HasSubstr("stands alone"));
  EXPECT_THAT(error_of({{"smoke"}, "standard", {}, {}}), HasSubstr("stands alone"));
  EXPECT_THAT(error_of({{}, "standad", {}, {}}), HasSubstr("did you mean 'standard'?"));
  EXPECT_THAT(error_of({{}, "", {"free/quik"}, {}}), HasSubstr("no case 'free/quik'; did you mean 'free/quick'?"));
  EXPECT_THAT(error_of({{}, "", {}, {"nothing*"}}), HasSubstr("--exclude: no case 'nothing*'"));
}

TEST(Plan, ALevelWithoutCasesOfItsOwnIsRefused) {
  for (const std::string level : {"full", "soak"}) {
    EXPECT_THAT(error_of({{level}, "", {}, {}}), HasSubstr("unknown suite or level '" + level + "'"));
    EXPECT_THAT(error_of({{level}, "", {}, {}}), HasSubstr("levels: smoke, standard)"));
    EXPECT_THAT(error_of({{}, level, {}, {}}), HasSubstr("--level: unknown level '" + level + "'"));
  }
}

TEST(Plan, TheEmptyNameSelectsNothing) { EXPECT_TRUE(ids({{""}, "", {}, {}}).empty()); }

TEST(Plan, BlockingGoesThroughTheGraphEvenPastUnselectedSuites) {
  const Program p = program();
  EXPECT_EQ(harness::blocked_by(p.suites, "late", {"early"}), "early");
  EXPECT_EQ(harness::blocked_by(p.suites, "later", {"early"}), "early");
  EXPECT_EQ(harness::blocked_by(p.suites, "later", {"late"}), "late");
  EXPECT_EQ(harness::blocked_by(p.suites, "free", {"early", "late"}), "");
  EXPECT_EQ(harness::blocked_by(p.suites, "early", {"early"}), "") << "a suite does not block itself";
}

TEST(Plan, AGraphThatIsNoneIsAMistakeOfTheProgram) {
  Program p;
  p.suites = {suite("a", {"b"}), suite("b", {"a"})};
  EXPECT_THROW((void)harness::running_order(p.suites), std::logic_error);
  p.suites = {suite("a", {"nothing"})};
  EXPECT_THROW((void)harness::running_order(p.suites), std::logic_error);
  p.suites = {{"twice", "p", {}, [](const Settings&) { return std::vector<Case>(2); }}};
  EXPECT_THROW((void)make_plan(p, Settings({}), Selection{}), std::logic_error);
}

TEST(Plan, Patterns) {
  using harness::matches;
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a*c", "abbc"));
  EXPECT_TRUE(matches("a*b*c", "aXbYbZc"));
  EXPECT_TRUE(matches("x[S=?]", "x[S=1]"));
  EXPECT_FALSE(matches("x[S=?]", "xS"));
  EXPECT_FALSE(matches("a?", "a"));
  EXPECT_FALSE(matches("a*d", "abc"));
  EXPECT_FALSE(matches("", "a"));
}

}  // namespace
