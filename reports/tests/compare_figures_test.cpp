// Figures: what is a change, and what is noise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reports/tests/support/compared.hpp"

namespace reports {
namespace {

using sample::Compared;
using sample::interval;
using sample::kNaN;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// What comes to be of one metric that has these values in the runs.
Figure::Step change(const Json& before, const Json& after, const Json& fact_before = {}, const Json& fact_after = {}) {
  Compared runs;
  runs.at(0).metrics = {{"speed", before, "tok/s"}, {"kept", 1, "1"}};
  runs.at(1).metrics = {{"speed", after, "tok/s"}, {"kept", 1, "1"}};
  if (!fact_before.is_null()) runs.at(0).facts["speed"] = fact_before;
  if (!fact_after.is_null()) runs.at(1).facts["speed"] = fact_after;
  const Comparison all = runs();
  return all.figures.empty() ? Figure::Step{} : all.figures.at(0).steps.at(0);
}

TEST(Compare, AChangeIsOneOnlyBeyondTheNoiseThatTheReportKnows) {
  using Change = Figure::Change;
  EXPECT_EQ(change(100, 100).change, Change::same);
  EXPECT_EQ(change(100, 120).change, Change::no_interval);
  EXPECT_NEAR(change(100, 120).percent.value(), 20, 1e-9);
  EXPECT_EQ(change(100, 120, interval(90, 110)).change, Change::no_interval) << "of one of them";
  EXPECT_EQ(change(100, 120, interval(90, 110), interval(115, 125)).change, Change::changed);
  EXPECT_EQ(change(100, 120, interval(90, 116), interval(115, 125)).change, Change::within_noise);
  EXPECT_EQ(change(120, 100, interval(115, 125), interval(90, 115)).change, Change::within_noise) << "they touch";
  EXPECT_EQ(change(120, 100, interval(116, 125), interval(90, 115)).change, Change::changed);
}

TEST(Compare, AnIntervalThatIsNoneDoesNotCount) {
  using Change = Figure::Change;
  const Json good = interval(119, 121);
  EXPECT_EQ(change(100, 120, interval(99, 101), good).change, Change::changed);
  EXPECT_EQ(change(100, 120, interval(99, 101, 1), good).change, Change::no_interval) << "one repeat";
  EXPECT_EQ(change(100, 120, interval(101, 99), good).change, Change::no_interval) << "its ends are swapped";
  EXPECT_EQ(change(100, 120, interval(101, 102), good).change, Change::no_interval) << "does not hold its value";
  EXPECT_EQ(change(100, 120, {{"low", "NaN"}, {"high", 101}}, good).change, Change::no_interval);
  EXPECT_EQ(change(100, 120, {{"high", 101}}, good).change, Change::no_interval);
  EXPECT_EQ(change(100, 120, {{"interval", {99, 101}}}, good).change, Change::changed);
  EXPECT_EQ(change(100, 120, {{"interval", {99}}}, good).change, Change::no_interval);
  EXPECT_EQ(change(100, 120, Json::array({99, 100, 101}), good).change, Change::changed) << "the repeats themselves";
  EXPECT_EQ(change(100, 120, Json::array({99, 101}), good).change, Change::no_interval) << "two are no range";
  EXPECT_EQ(change(100, 120, Json::array({99, 100, "x"}), good).change, Change::no_interval);
}

TEST(Compare, EndsBesideAFigureAreItsIntervalAndNoFigures) {
  Compared runs;
  runs.at(0).metrics = {{"step", 100, "s"}, {"step_low", 99, "s"}, {"step_high", 101, "s"}};
  runs.at(1).metrics = {{"step", 120, "s"}, {"step_low", 119, "s"}, {"step_high", 121, "s"}};
  EXPECT_EQ(runs().figures.size(), 1U);
  EXPECT_EQ(runs().figures.at(0).steps.at(0).change, Figure::Change::changed);
  runs.at(1).metrics[1].unit = "ms";
  EXPECT_EQ(runs().figures.at(0).steps.at(0).change, Figure::Change::no_interval);
}

TEST(Compare, WhatABuildDiffersByFromItselfIsNoise) {
  Compared runs;
  for (std::size_t i = 0; i < 2; ++i) runs.at(i).facts["noise_floor"] = {{"floor_percent", 5}};
  const auto set = [&](double after) {
    runs.at(0).metrics = {{"speed", 100, "tok/s"}};
    runs.at(1).metrics = {{"speed", after, "tok/s"}};
    runs.at(0).facts["speed"] = interval(99.9, 100.1);
    runs.at(1).facts["speed"] = interval(after - 0.1, after + 0.1);
    return runs().figures.at(0).steps.at(0).change;
  };
  EXPECT_EQ(set(104), Figure::Change::within_noise);
  EXPECT_EQ(set(106), Figure::Change::changed);
  EXPECT_EQ(set(96), Figure::Change::within_noise);
  EXPECT_EQ(set(94), Figure::Change::changed);
  runs.at(1).facts["load"] = {{"busy", true}};
  EXPECT_EQ(set(94), Figure::Change::machine_busy) << "a busy machine accuses nobody";
  EXPECT_EQ(runs().steps[0].came_out, 0);
}

TEST(Compare, WhatIsNoNumberIsNeverEqualToOne) {
  using Change = Figure::Change;
  const std::vector<Json> no_numbers{number(kNaN), number(INFINITY), number(-INFINITY)};
  for (const Json& word : no_numbers) {
    EXPECT_EQ(change(1, word).change, Change::not_finite) << word;
    EXPECT_EQ(change(word, 1).change, Change::not_finite) << word;
    EXPECT_EQ(change(1, word, interval(0, 2), interval(0, 2)).change, Change::not_finite) << word;
    EXPECT_FALSE(change(1, word).percent);
    for (const Json& other : no_numbers)
      EXPECT_EQ(change(word, other).change, word == other ? Change::same : Change::not_finite) << word << other;
  }
  Compared runs;
  runs.at(0).metrics = {{"loss", 1.5, "nat"}, {"never", number(kNaN), "1"}};
  runs.at(1).metrics = {{"loss", number(kNaN), "nat"}, {"never", number(kNaN), "1"}};
  const Comparison all = runs();
  EXPECT_EQ(all.never_finite, 1);
  EXPECT_EQ(all.equal_figures, 0);
  EXPECT_EQ(all.steps[0].came_out, 1);
  EXPECT_THAT(to_text(all), AllOf(testing::ContainsRegex("loss +1.5 nat +NaN nat +not a finite number\n"),
                                  HasSubstr("1 figure NaN or infinite in all runs")));
}

TEST(Compare, AFigureThatIsMissingIsToldWhereItsCaseRan) {
  Compared runs;
  runs.at(0).metrics = {{"m", 1, "s"}};
  EXPECT_EQ(runs().figures.at(0).steps.at(0).change, Figure::Change::missing);
  EXPECT_THAT(to_text(runs()), testing::ContainsRegex("m +1 s +missing +missing now\n"));
  runs.at(1).status = Status::skip;
  EXPECT_THAT(runs().figures, IsEmpty()) << "its outcome says it";
  EXPECT_EQ(runs().equal_figures, 0);
  runs.at(1).status = Status::pass;
  runs.at(1).metrics = {{"m", 1, "ms"}};
  EXPECT_EQ(runs().figures.at(0).steps.at(0).change, Figure::Change::other_unit);
}

TEST(Compare, FiguresOfOneNameAreComparedInTheirOrder) {
  Compared runs;
  runs.at(0).metrics = {{"m", 0, "1"}, {"m", 5, "1"}};
  runs.at(1).metrics = {{"m", 0, "1"}, {"m", 6, "1"}};
  const Comparison all = runs();
  ASSERT_EQ(all.figures.size(), 1U);
  EXPECT_EQ(all.figures[0].by_run[0].value.value(), 5);
  EXPECT_EQ(all.equal_figures, 1);
}

TEST(Compare, FromZeroThereIsNoPercentage) {
  EXPECT_EQ(change(0, 1).change, Figure::Change::no_interval);
  EXPECT_FALSE(change(0, 1).percent);
  EXPECT_NEAR(change(-2, -1).percent.value(), 50, 1e-9) << "of the size of what was before";
}

}  // namespace
}  // namespace reports
