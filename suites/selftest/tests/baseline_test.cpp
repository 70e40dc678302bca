// The score that is kept: what is no such file is refused, and what got worse is told.
#include "suites/selftest/baseline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace suites::selftest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Trial trial(const std::string& name, Outcome outcome, bool cause_first = false) {
  Trial t;
  t.fault = name;
  t.outcome = outcome;
  t.cause_first = cause_first;
  return t;
}

const std::vector<Trial> kBefore = {trial("a", Outcome::caught, true), trial("b", Outcome::caught),
                                    trial("c", Outcome::survived), trial("d", Outcome::not_run)};
Baseline before() { return baseline_of(kBefore, "smoke", "cpu"); }
const std::vector<std::string> kCatalogue = {"a", "b", "c", "d", "e"};

std::string refusal(const std::string& text, bool incompatible = false) {
  try {
    (void)parse_baseline(text, "score.json");
  } catch (const BaselineError& error) {
    EXPECT_EQ(error.incompatible, incompatible) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was taken: " << text;
  return "";
}

TEST(Baseline, WhatIsWrittenIsRead) {
  const Baseline read = parse_baseline(to_text(before()), "score.json");
  EXPECT_EQ(read.level, "smoke");
  EXPECT_EQ(read.device, "cpu");
  ASSERT_EQ(read.faults.size(), 4u);
  EXPECT_EQ(read.faults.at("a").outcome, Outcome::caught);
  EXPECT_TRUE(read.faults.at("a").cause_first);
  EXPECT_EQ(read.faults.at("d").outcome, Outcome::not_run);
  EXPECT_EQ(to_text(read), to_text(before()));
}

TEST(Baseline, NothingIsWorseThanItself) {
  const Comparison same = compare(before(), kBefore, kCatalogue);
  EXPECT_FALSE(same.worse());
  EXPECT_THAT(same.fresh, IsEmpty());
}

TEST(Baseline, ADropIsTold) {
  const std::vector<Trial> now = {trial("a", Outcome::caught, false), trial("b", Outcome::by_crash),
                                  trial("c", Outcome::caught), trial("e", Outcome::survived)};
  const Comparison worse = compare(before(), now, kCatalogue);
  EXPECT_TRUE(worse.worse());
  EXPECT_THAT(worse.lost, ElementsAre("b"));
  EXPECT_THAT(worse.cause_lost, ElementsAre("a"));
  EXPECT_THAT(worse.gained, ElementsAre("c"));
  EXPECT_THAT(worse.fresh, ElementsAre("e"));
  EXPECT_THAT(worse.gone, IsEmpty()) << "what was not tried now is in the catalogue still";
}

TEST(Baseline, EachKindOfDropAloneIsWorse) {
  EXPECT_TRUE(compare(before(), std::vector{trial("a", Outcome::caught)}, kCatalogue).worse());
  EXPECT_TRUE(compare(before(), std::vector{trial("b", Outcome::survived)}, kCatalogue).worse());
  EXPECT_TRUE(compare(before(), std::vector{trial("b", Outcome::not_run)}, kCatalogue).worse());
  EXPECT_TRUE(compare(before(), {}, std::vector<std::string>{"a", "b", "c"}).worse()) << "d was taken away";
  EXPECT_FALSE(compare(before(), std::vector{trial("b", Outcome::broken)}, kCatalogue).worse()) << "told elsewhere";
}

TEST(Baseline, WhatIsDamagedIsNeverAPass) {
  EXPECT_THAT(refusal(""), HasSubstr("score.json: is empty"));
  EXPECT_THAT(refusal(" \n"), HasSubstr("is empty"));
  EXPECT_THAT(refusal("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("'schema' must be a text"));
  EXPECT_THAT(refusal(R"({"schema":"nsa-validate/report","schema_version":"1.0.0"})"), HasSubstr("is not"));
  const std::string good = to_text(before());
  for (std::size_t end = 1; end + 2 < good.size(); end += 3) (void)refusal(good.substr(0, end));  // torn anywhere
  const auto with = [&](const std::string& what, const std::string& by) {
    std::string text = good;
    const std::size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return text.replace(at, what.size(), by);
  };
  EXPECT_THAT(refusal(with("\"1.0.0\"", "\"2.0.0\""), true), HasSubstr("version 2.0.0"));
  EXPECT_THAT(refusal(with("\"caught\"", "\"fine\"")), HasSubstr("'fine' is no outcome"));
  EXPECT_THAT(refusal(with("\"caught\"", "\"broken\"")), HasSubstr("'broken' is no outcome"));
  EXPECT_THAT(refusal(with("\"caught\"", "7")), HasSubstr("fault 'a': needs an outcome"));
  EXPECT_THAT(refusal(with("true", "1")), HasSubstr("needs cause_first"));
  EXPECT_THAT(refusal(with("\"caught\",\"cause_first\":true", "\"survived\",\"cause_first\":true")),
              HasSubstr("right first where the fault was caught"));
  EXPECT_THAT(refusal(with("\"smoke\"", "7")), HasSubstr("'level' must be a text"));
  EXPECT_THAT(refusal(with("\"level\"", R"("device": "cuda", "level")")), HasSubstr("'device' stands twice"));
  Baseline none = before();
  none.faults.clear();
  EXPECT_THAT(refusal(to_text(none)), HasSubstr("holds no fault"));
}

TEST(Baseline, RowsOfWhatWasTriedAreReplacedAndNoOthers) {
  const Baseline now =
      with_rows_of(before(), std::vector{trial("c", Outcome::caught, true), trial("e", Outcome::survived)});
  EXPECT_EQ(now.faults.size(), 5u);
  EXPECT_TRUE(now.faults.at("c").cause_first);
  EXPECT_EQ(now.faults.at("e").outcome, Outcome::survived);
  EXPECT_EQ(now.faults.at("b").outcome, Outcome::caught);
}

TEST(Baseline, OfAnotherLevelOrDeviceIsRefused) {
  EXPECT_NO_THROW(check_fits(before(), "smoke", "cpu", "score.json"));
  EXPECT_THROW(check_fits(before(), "standard", "cpu", "score.json"), BaselineError);
  EXPECT_THROW(check_fits(before(), "smoke", "cuda", "score.json"), BaselineError);
}

}  // namespace
}  // namespace suites::selftest
