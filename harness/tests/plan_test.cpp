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

std::string error_of_selection(const Selection& selection) {
  try {
    (void)ids(selection);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> order_of(const std::vector<Suite>& suites) {
  std::vector<std::string> names;
  for (const Suite* s : harness::running_order(suites)) names.push_back(s->name);
  return names;
}

TEST(Plan, RequiredSuitesRunBefore) {
  EXPECT_THAT(order_of(program().suites), ElementsAre("early", "late", "later", "free"));
}

TEST(Plan, ASuiteStandsBehindTheOneThatItRunsAfter) {
  Program p = program();
  p.suites[0].runs_after = "free";  // of late, which requires early
  EXPECT_THAT(order_of(p.suites), ElementsAre("early", "free", "late", "later"));
  EXPECT_EQ(harness::blocked_by(p.suites, "late", {"free"}), "") << "an order, and nothing more";
}

// Whatever its name is, and wherever the program has it.
TEST(Plan, ANewcomerStandsDirectlyBehindTheOneThatItRunsAfter) {
  const auto after = [](const std::string& name, const std::string& other) {
    Suite s = suite(name);
    s.runs_after = other;
    return s;
  };
  const std::vector<Suite> chain = {after("alpha", "mike"), suite("first"), after("mike", "first"),
                                    after("zulu", "alpha")};
  EXPECT_THAT(order_of(chain), ElementsAre("first", "mike", "alpha", "zulu"));
  for (const std::string name : {"aaa", "newcomer", "zzz"}) {
    for (std::size_t place = 0; place <= chain.size(); ++place) {
      const auto with = [&](const std::string& other) {
        std::vector<Suite> suites = chain;
        suites.insert(suites.begin() + static_cast<std::ptrdiff_t>(place), after(name, other));
        return order_of(suites);
      };
      EXPECT_THAT(with("first"), ElementsAre("first", name, "mike", "alpha", "zulu"));
      EXPECT_THAT(with("mike"), ElementsAre("first", "mike", name, "alpha", "zulu"));
      EXPECT_THAT(with("zulu"), ElementsAre("first", "mike", "alpha", "zulu", name));
    }
  }
  // Two with as much behind them: by name.
  for (const auto& suites : {std::vector{suite("first"), after("b", "first"), after("a", "first")},
                             std::vector{after("a", "first"), suite("first"), after("b", "first")}})
    EXPECT_THAT(order_of(suites), ElementsAre("first", "a", "b"));
  // What it requires runs before it, and the rest does not wait for it.
  std::vector<Suite> suites = chain;
  suites.push_back(after("newcomer", "first"));
  suites.back().requires_suites = {"alpha"};
  EXPECT_THAT(order_of(suites), ElementsAre("first", "mike", "alpha", "newcomer", "zulu"));
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

// Three suites whose settings are looked at by one case each: a guard, one of the standard level, one of smoke.
struct Settable {
  Program program;
  Settings settings{{spec("guards.commit"), spec("deep.baseline"), spec("wide.lengths")}};

  Settable() {
    const auto with = [](const std::string& name, Level level, bool guards) {
      Suite s{name, "purpose", {}, [=](const Settings& values) {
                std::vector<Case> cases(2);
                cases[0].name = "always";
                cases[1].name = "asked";
                cases[1].level = level;
                for (const auto& [key, value] : values.values())
                  if (key.starts_with(name + ".")) cases[1].brought_by = {key};
                return cases;
              }};
      s.guards = guards;
      return s;
    };
    program.suites = {with("guards", Level::standard, true), with("deep", Level::standard, false),
                      with("wide", Level::smoke, false)};
  }
  static harness::SettingSpec spec(const std::string& key) {
    harness::SettingSpec s;
    s.key = key;
    return s;
  }
  std::vector<std::string> ids(const Selection& selection) const {
    std::vector<std::string> result;
    for (const auto& s : make_plan(program, settings, selection).suites)
      for (const auto& c : s.cases) result.push_back(c.id);
    return result;
  }
};

TEST(Plan, WhatIsSetIsLookedAtAtEveryLevel) {
  Settable x;
  EXPECT_THAT(x.ids({}), ElementsAre("guards/always", "deep/always", "wide/always", "wide/asked"));
  x.settings.set("deep.baseline", "report", "some.yaml:3");
  EXPECT_THAT(x.ids({}), ElementsAre("guards/always", "deep/always", "deep/asked", "wide/always", "wide/asked"));
  EXPECT_THAT(x.ids({{"deep"}, "", {}, {}}), ElementsAre("deep/always", "deep/asked"));
  EXPECT_THAT(x.ids({{"deep"}, "", {"deep/a*d"}, {}}), ElementsAre("deep/asked"));
  EXPECT_THAT(x.ids({{"deep"}, "", {}, {"deep/asked"}}), ElementsAre("deep/always"));
  EXPECT_THAT(x.ids({{"wide"}, "", {}, {}}), ElementsAre("wide/always", "wide/asked")) << "a file is for many runs";
  EXPECT_EQ(make_plan(x.program, x.settings, {}).suites[1].cases[1].brought_by, "deep.baseline");
}

TEST(Plan, AGuardThatIsSetIsLookedAtWhateverSuitesAreNamed) {
  Settable x;
  x.settings.set("guards.commit", "abc", "--set");
  EXPECT_THAT(x.ids({{"wide"}, "", {}, {}}), ElementsAre("guards/asked", "wide/always", "wide/asked"));
  EXPECT_THAT(x.ids({{"wide"}, "", {"wide/always"}, {}}), ElementsAre("wide/always"));
  EXPECT_THAT(x.ids({{"wide"}, "", {}, {"guards/*"}}), ElementsAre("wide/always", "wide/asked"));
  EXPECT_TRUE(x.ids({{""}, "", {}, {}}).empty());
}

TEST(Plan, AnOptionThatNoSelectedSuiteLooksAtIsRefused) {
  Settable x;
  x.settings.set("deep.baseline", "report", "--set");
  try {
    (void)x.ids({{"wide"}, "", {}, {}});
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "--set: deep.baseline: only the suite deep looks at it; name that as well: --suite wide,deep");
  }
  EXPECT_EQ(x.ids({{"wide", "deep"}, "", {}, {}}).size(), 4U);
  EXPECT_THAT(x.ids({{}, "", {"wide/always"}, {}}), ElementsAre("wide/always")) << "repro commands set everything";
}

TEST(Plan, ACaseThatIsBroughtByAnUnknownSettingIsAMistakeOfTheProgram) {
  Settable x;
  x.settings = Settings({});
  x.program.suites[0].cases = [](const Settings&) {
    std::vector<Case> cases(1);
    cases[0].name = "asked";
    cases[0].brought_by = {"guards.comit"};
    return cases;
  };
  EXPECT_THROW((void)x.ids({}), std::logic_error);
}

TEST(Plan, UnknownNamesAreErrorsWithTheNearest) {
  EXPECT_THAT(error_of_selection({{"eary"}, "", {}, {}}),
              HasSubstr("unknown suite or level 'eary'; did you mean 'early'?"));
  EXPECT_THAT(error_of_selection({{"smoke", "free"}, "", {}, {}}), HasSubstr("'smoke' is a level and stands alone"));
  EXPECT_THAT(error_of_selection({{"smoke", "standard"}, "", {}, {}}), HasSubstr("stands alone"));
  EXPECT_THAT(error_of_selection({{"smoke"}, "standard", {}, {}}), HasSubstr("stands alone"));
  EXPECT_THAT(error_of_selection({{}, "standad", {}, {}}), HasSubstr("did you mean 'standard'?"));
  EXPECT_THAT(error_of_selection({{}, "", {"free/quik"}, {}}),
              HasSubstr("no case 'free/quik'; did you mean 'free/quick'?"));
  EXPECT_THAT(error_of_selection({{}, "", {}, {"nothing*"}}), HasSubstr("--exclude: no case 'nothing*'"));
}

TEST(Plan, ALevelWithoutCasesOfItsOwnIsRefused) {
  for (const std::string level : {"full", "soak"}) {
    EXPECT_THAT(error_of_selection({{level}, "", {}, {}}), HasSubstr("unknown suite or level '" + level + "'"));
    EXPECT_THAT(error_of_selection({{level}, "", {}, {}}), HasSubstr("levels: smoke, standard)"));
    EXPECT_THAT(error_of_selection({{}, level, {}, {}}), HasSubstr("--level: unknown level '" + level + "'"));
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
  p.suites = {suite("a")};
  p.suites[0].runs_after = "nothing";
  EXPECT_THROW((void)harness::running_order(p.suites), std::logic_error);
  p.suites[0].runs_after = "a";
  EXPECT_THROW((void)harness::running_order(p.suites), std::logic_error);
  p.suites = {suite("first"), suite("a"), suite("b")};
  p.suites[1].runs_after = "b";
  p.suites[2].runs_after = "a";
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
