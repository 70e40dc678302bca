// One failure among the ends of all ranks: its code, the rank by name, and not those that only suffered from it.
#include "suites/distributed/ends.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "suites/codes.hpp"
#include "suites/distributed/tests/made_records.hpp"

namespace suites::distributed_ranks {
namespace {

using testing::HasSubstr;

std::vector<Ended> well(int size) {
  std::vector<Ended> ends;
  for (const RankRecord& record : tests::healthy(size)) ends.push_back({.record = record, .seconds = 3.0});
  return ends;
}

void says(Ended& end, const std::string& kind, const std::string& message, Json details = Json::object()) {
  end.record.done = false;
  end.record.error = RankError{kind, message, std::move(details)};
  end.value = 1;
}
void killed(Ended& end, int signal, double seconds, bool by_us) {
  end.record.done = false;
  end.by_signal = true;
  end.value = signal;
  end.seconds = seconds;
  end.ended_by_us = by_us;
}

void expect_told(const std::vector<Ended>& ends, std::string_view code, const Json& ranks, const std::string& words) {
  const Disagreements found = judge_ends(ends);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].code, code) << found[0].message;
  EXPECT_EQ(found[0].evidence["ranks"], ranks) << found[0].message;
  EXPECT_THAT(found[0].message, HasSubstr(words));
  EXPECT_EQ(found[0].evidence["said"].size(), ends.size());
}

TEST(Ends, OfAHealthyRunAreNoFinding) { EXPECT_TRUE(judge_ends(well(3)).empty()); }

TEST(Ends, ADeathIsToldBeforeWhatOthersSufferedFromIt) {
  auto ends = well(3);
  ends[1].record.moments = {"step 1: backward"};
  killed(ends[1], SIGKILL, 1.0, false);
  says(ends[0], "peer_died", "rank 1 was killed by SIGKILL", {{"ranks", {1}}});
  killed(ends[2], SIGKILL, 2.0, true);
  expect_told(ends, codes::kRankDied, {1}, "rank 1 died (SIGKILL");
}

TEST(Ends, OfTwoDeathsTheFirstIsTold) {
  auto ends = well(3);
  killed(ends[2], SIGSEGV, 1.0, false);
  killed(ends[0], SIGABRT, 1.5, false);
  expect_told(ends, codes::kRankDied, {2}, "SIGSEGV");
}

TEST(Ends, AnExitWithoutAWordIsADeath) {
  auto ends = well(2);
  ends[1].record.done = false;
  ends[1].value = 7;
  expect_told(ends, codes::kRankDied, {1}, "exit code 7");
}

TEST(Ends, WhoSaysThatAPeerDiedIsBelieved) {
  auto ends = well(2);
  says(ends[0], "peer_died", "rank 1 is gone", {{"ranks", {1}}});
  killed(ends[1], SIGKILL, 2, true);
  expect_told(ends, codes::kRankDied, {1}, "rank 1 is gone");
}

TEST(Ends, BeforeTheGroupStands) {
  auto ends = well(2);
  says(ends[0], "absent", "rank 1 did not arrive", {{"ranks", {1}}});
  killed(ends[1], SIGKILL, 9, true);
  expect_told(ends, codes::kRankAbsent, {1}, "did not arrive");
  ends = well(2);
  says(ends[0], "absent", "rank 1 did not arrive", {{"ranks", {1}}});
  says(ends[1], "unreachable", "no store at 10.0.0.1:1");
  expect_told(ends, codes::kStoreUnreachable, {1}, "10.0.0.1");
  says(ends[0], "port_taken", "port 29500 is in use");
  expect_told(ends, codes::kPortTaken, {0}, "29500");
}

TEST(Ends, AHangIsInsideOrOutsideByWhereTheRankStood) {
  for (const bool inside : {true, false}) {
    auto ends = well(3);
    says(ends[0], "timeout", "rank 1 is missing from collective 7",
         {{"ranks", {1}}, {"collective", "figures"}, {"sequence", 7}, {"stacks", "thread 1"}});
    ends[1].record.moments = {inside ? "in collective figures" : "step 1: fetch"};
    killed(ends[1], SIGKILL, 5, true);
    expect_told(ends, inside ? codes::kRankHangsInside : codes::kRankHangsOutside, {1}, "collective 7");
    const Json evidence = judge_ends(ends)[0].evidence;
    EXPECT_EQ(evidence["collective"], "figures");
    EXPECT_EQ(evidence["sequence"], 7);
    EXPECT_EQ(evidence["said"]["0"]["stacks"], "thread 1");
  }
}

TEST(Ends, EveryFactHasItsCode) {
  const std::pair<const char*, std::string_view> facts[] = {{"weights", codes::kRankWeights},
                                                            {"seed", codes::kRankSeed},
                                                            {"build", codes::kRankBuild},
                                                            {"flags", codes::kRankSettings},
                                                            {"data", codes::kRankData},
                                                            {"clock", codes::kRankClock},
                                                            {"collective", codes::kCollectiveDiffers},
                                                            {"configuration", codes::kRankSettings}};
  for (const auto& [fact, code] : facts) {
    auto ends = well(2);
    says(ends[0], "disagreement", std::string("they differ in ") + fact, {{"ranks", {1}}, {"fact", fact}});
    says(ends[1], "disagreement", std::string("they differ in ") + fact, {{"ranks", {1}}, {"fact", fact}});
    expect_told(ends, code, {1}, fact);
  }
  EXPECT_EQ(code_of_fact("something new"), codes::kRankEnded);
}

TEST(Ends, AnotherErrorLeadsThoseOfItsVictims) {
  auto ends = well(2);
  says(ends[0], "timeout", "rank 1 is missing", {{"ranks", {1}}});
  says(ends[1], "other", "out of memory");
  expect_told(ends, codes::kRankEnded, {1}, "out of memory");
}

TEST(Ends, SilenceIsNoGoodEnd) {
  auto ends = well(2);
  ends[1].record.done = false;
  expect_told(ends, codes::kRankEnded, {1}, "nobody says why");
}

TEST(Ends, AFullSharedMemoryIsToldWhereItIsNeeded) {
  auto ends = well(2);
  says(ends[0], "other", "NCCL: unhandled system error");
  ends[1].record.shared_memory_bytes = 4096;
  const Disagreements found = judge_ends(ends, 1 << 25);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].code, codes::kSharedMemory);
  EXPECT_EQ(judge_ends(ends)[0].code, codes::kRankEnded);
}

}  // namespace
}  // namespace suites::distributed_ranks
