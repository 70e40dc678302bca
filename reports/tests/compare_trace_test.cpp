// Where two runs part: the first step and the first stage, never a later one, and never "the same" where it is not.
#include "reports/compare_trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace reports {
namespace {

using testing::HasSubstr;

Run run_with(const std::vector<std::pair<std::string, Json>>& facts, const std::string& id = "training/real_text") {
  Case c;
  c.id = id;
  c.suite = "training";
  c.facts = Json::object();
  for (const auto& [key, value] : facts) c.facts[key] = value;
  Run run;
  run.suites = {{.name = "training", .purpose = "", .requires_suites = {}, .cases = {c}}};
  return run;
}

const Json kStep0 = {{"embedding", "0a"}, {"layers.0.o", "1a"}, {"loss", "2a"}};
const Json kStep1 = {{"embedding", "0b"}, {"layers.0.o", "1b"}, {"loss", "2b"}};

TracedCase one(const Run& a, const Run& b) {
  const auto cases = compare_traces(a, b);
  EXPECT_EQ(cases.size(), 1U);
  return cases.at(0);
}

TEST(CompareTrace, TheSameBits) {
  const reports::Run run = run_with({{"trace/0", kStep0}, {"trace/1", kStep1}, {"steps", 3}});
  const TracedCase same = one(run, run);
  EXPECT_FALSE(same.parting);
  EXPECT_EQ(same.steps, 2);
  EXPECT_EQ(same.hashes, 6);
  EXPECT_EQ(to_text({same}), "trace training/real_text: the same bits in 2 steps, 6 hashes\n");
}

// Each hash in turn is another one, with all that follows.
TEST(CompareTrace, TheFirstThatDiffersIsNamed) {
  const std::vector<std::string> names = {"embedding", "layers.0.o", "loss"};
  for (std::int64_t step : {0, 1}) {
    for (std::size_t at = 0; at < names.size(); ++at) {
      Json steps[] = {kStep0, kStep1};
      for (std::size_t i = at; i < names.size(); ++i) steps[step][names[i]] = "ff";
      if (step == 0) steps[1]["embedding"] = "ff";
      const TracedCase found = one(run_with({{"trace/0", kStep0}, {"trace/1", kStep1}}),
                                   run_with({{"trace/0", steps[0]}, {"trace/1", steps[1]}}));
      ASSERT_TRUE(found.parting);
      EXPECT_EQ(found.parting->step, step);
      EXPECT_EQ(found.parting->stage, names[at]);
      EXPECT_EQ(found.hashes, step * 3 + static_cast<std::int64_t>(at));
      EXPECT_EQ(found.parting->before, at == 0 ? "" : names[at - 1]);
    }
  }
}

TEST(CompareTrace, TheTenthStepComesAfterTheSecond) {
  Json other = kStep1;
  other["loss"] = "ff";
  const TracedCase found =
      one(run_with({{"trace/10", kStep0}, {"trace/2", kStep1}}), run_with({{"trace/10", kStep1}, {"trace/2", other}}));
  EXPECT_EQ(found.parting->step, 2);
}

TEST(CompareTrace, AMissingStageOrStepIsADifference) {
  const reports::Run whole = run_with({{"trace/0", kStep0}, {"trace/1", kStep1}});
  Json without = kStep1;
  without.erase("loss");
  TracedCase found = one(whole, run_with({{"trace/0", kStep0}, {"trace/1", without}}));
  EXPECT_EQ(found.parting->stage, "loss");
  EXPECT_EQ(found.parting->what, "only the first run has it");
  without.erase("layers.0.o");
  without["other"] = "1b";
  found = one(whole, run_with({{"trace/0", kStep0}, {"trace/1", without}}));
  EXPECT_EQ(found.parting->stage, "layers.0.o");
  EXPECT_THAT(found.parting->what, HasSubstr("computes other there"));
  found = one(run_with({{"trace/0", kStep0}}), whole);
  EXPECT_EQ(found.parting->step, 1);
  EXPECT_EQ(found.parting->what, "only the second run has this step");
}

TEST(CompareTrace, WhatDidNotTraceIsNotCompared) {
  const reports::Run traced = run_with({{"trace/0", kStep0}}), silent = run_with({{"steps", 1}});
  EXPECT_TRUE(compare_traces(traced, silent).empty());
  EXPECT_TRUE(compare_traces(silent, traced).empty());
  EXPECT_TRUE(compare_traces(traced, run_with({{"trace/0", kStep0}}, "training/other")).empty());
}

TEST(CompareTrace, WhatIsNoTraceIsRefused) {
  const reports::Run good = run_with({{"trace/0", kStep0}});
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{{"trace/", kStep0},
                                                                            {"trace/x", kStep0},
                                                                            {"trace/-1", kStep0},
                                                                            {"trace/9999999999999999999", kStep0},
                                                                            {"trace/0", 3},
                                                                            {"trace/0", {{"loss", 3}}}})
    EXPECT_THROW((void)compare_traces(good, run_with({{key, value}})), std::invalid_argument) << key;
}

}  // namespace
}  // namespace reports
