#include "nsa/parallel/diagnosis.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "nsa/parallel/ring.hpp"

namespace {

using namespace nsa::parallel;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const CollectiveRecord kWaited{7, "gradients bucket 1", 100, "Float", 1.5, -1};

RankState waiting(int rank) {
  RankState state;
  state.rank = rank;
  state.answered = state.sent = true;
  state.doing = "backward";
  state.open = state.last = kWaited;
  return state;
}

// As of NCCL: the host is through when the GPU has been given the work.
TEST(ParallelRing, WhatAGpuWasGivenIsOpenUntilItIsDone) {
  Ring ring;
  bool first_done = false, second_done = true;
  ring.ends_when(ring.begin("gradients bucket 0", 10, "Float", 1), [&] { return first_done; });
  ring.ends_when(ring.begin("gradients bucket 1", 10, "Float", 2), [&] { return second_done; });
  ring.look(3);
  ASSERT_TRUE(ring.open().has_value());
  EXPECT_EQ(ring.open()->record.name, "gradients bucket 0");
  EXPECT_EQ(ring.all()[1].ended_s, -1) << "behind one that is not done";
  first_done = true;
  ring.look(4);
  EXPECT_FALSE(ring.open().has_value());
  EXPECT_EQ(ring.all()[0].ended_s, 4);
  first_done = false;
  ring.look(5);
  EXPECT_EQ(ring.all()[0].ended_s, 4) << "asked no more";
}

TEST(ParallelRing, AGpuThatDoesNotAnswerHoldsNobodyUp) {
  Ring ring;
  std::promise<void> asked, answers;
  ring.ends_when(ring.begin("figures", 6, "Double", 1), [&] {
    asked.set_value();
    answers.get_future().wait();
    return true;
  });
  std::thread asks([&] { ring.look(2); });
  asked.get_future().wait();
  EXPECT_EQ(ring.open()->record.name, "figures");
  EXPECT_EQ(ring.begin("validation", 2, "Double", 3), 2U);
  ring.freeze();  // it is broken off
  answers.set_value();
  asks.join();
  EXPECT_EQ(ring.open()->record.name, "figures");
}

TEST(ParallelDiagnosis, EveryoneIsThere) {
  const auto found = diagnose(0, kWaited, 5, {waiting(0), waiting(1)});
  EXPECT_THAT(found.culprits, IsEmpty());
  EXPECT_THAT(found.what, AllOf(HasSubstr("rank 0 waited 5.0 s in collective 7 'gradients bucket 1' (100 x Float)"),
                                HasSubstr("their network delivers nothing")));
}

TEST(ParallelDiagnosis, WhoIsMissingAndWhere) {
  RankState silent, outside = waiting(2), before = waiting(3), inside = waiting(4);
  silent.rank = 1;
  outside.open.reset();
  outside.last = CollectiveRecord{6, "gradients bucket 0", 10, "Float", 1, 2};
  before.open.reset();
  before.last.reset();
  inside.sent = false;
  const auto found = diagnose(0, kWaited, 5, {waiting(0), silent, outside, before, inside, waiting(5)});
  EXPECT_THAT(found.culprits, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(found.what,
              AllOf(HasSubstr("rank 1 gives no answer"),
                    HasSubstr("rank 2 is outside of any collective; its last was 6 'gradients bucket 0' (10 x Float), "
                              "in its phase 'backward'"),
                    HasSubstr("rank 3 has not begun any collective"),
                    HasSubstr("rank 4 has begun it and sends nothing"), Not(HasSubstr("rank 5"))));
}

TEST(ParallelDiagnosis, TheOddOneIsInAnotherCollective) {
  RankState odd = waiting(2);
  odd.open = CollectiveRecord{7, "figures", 6, "Double", 1, -1};
  const auto found = diagnose(2, *odd.open, 5, {waiting(0), waiting(1), odd});
  EXPECT_THAT(found.culprits, ElementsAre(2)) << "although it was rank 2 that asked";
  EXPECT_THAT(found.what, HasSubstr("rank 2 is in collective 7 'figures' (6 x Double)"));
}

// A sum may be whole on one rank before it is on another one.
TEST(ParallelDiagnosis, WhoIsAheadAndWhoWaitsBehindAreNotNamed) {
  RankState ahead = waiting(1), inside = waiting(2);
  ahead.records = {kWaited, {8, "gradients bucket 2", 100, "Float", 1.6, -1}};
  ahead.open = ahead.last = ahead.records.back();
  inside.sent = false;
  EXPECT_THAT(diagnose(0, kWaited, 5, {waiting(0), ahead, inside}).culprits, ElementsAre(2));
  RankState too = ahead;
  too.rank = 3;
  EXPECT_THAT(diagnose(0, kWaited, 5, {waiting(0), ahead, inside, too}).culprits, ElementsAre(2))
      << "most are ahead of the one that only waits";
  RankState another = ahead;
  another.records.front().name = "figures";
  EXPECT_THAT(diagnose(0, kWaited, 5, {waiting(0), another, waiting(2)}).culprits, ElementsAre(1))
      << "it made another collective of this number";
  EXPECT_THAT(diagnose(0, kWaited, 5, {waiting(0), ahead, too}).culprits, ElementsAre(0)) << "nobody else is missing";
  another = ahead;
  another.records.front().elements = 99;
  EXPECT_THAT(diagnose(0, kWaited, 5, {waiting(0), another, waiting(2)}).culprits, ElementsAre(1)) << "of another size";
  EXPECT_THAT(diagnose(0, kWaited, 5, {waiting(0), ahead, waiting(2)}).culprits, ElementsAre(1)) << "nobody else is";
  RankState hung = ahead;
  hung.sent = false;
  EXPECT_THAT(diagnose(0, kWaited, 5, {waiting(0), hung, waiting(2)}).culprits, ElementsAre(1)) << "it sends nothing";
}

TEST(ParallelDiagnosis, StatesAndTroubleAreReadAgain) {
  RankState state = waiting(3);
  state.stacks = "thread 1\xff main\n";
  state.records = {kWaited};
  const RankState again = state_of(3, to_text(state));
  EXPECT_TRUE(again.answered);
  EXPECT_EQ(again.open->name, kWaited.name);
  EXPECT_EQ(again.records.at(0).sequence, 7U);
  EXPECT_FALSE(state_of(3, "").answered);
  EXPECT_FALSE(state_of(3, "{\"doing\"").answered);
  const Trouble trouble = trouble_of(to_text(Trouble{"died", {2}, "rank 2 \"was\" killed"}));
  EXPECT_EQ(trouble.kind, "died");
  EXPECT_THAT(trouble.ranks, ElementsAre(2));
  EXPECT_EQ(trouble.why, "rank 2 \"was\" killed");
  EXPECT_THAT(full_text("why", {again, state_of(4, "")}),
              AllOf(HasSubstr("==== rank 3"), HasSubstr("(not ended)"), HasSubstr("thread 1"),
                    HasSubstr("==== rank 4: no answer")));
}

TEST(ParallelRing, KeepsTheLastAndKnowsWhatIsOpen) {
  Ring ring;
  EXPECT_FALSE(ring.open() || ring.last());
  for (int i = 1; i <= 70; ++i) EXPECT_EQ(ring.begin("c", i, "Float", i), static_cast<std::uint64_t>(i));
  EXPECT_EQ(ring.all().size(), Ring::kKept);
  EXPECT_EQ(ring.all().front().sequence, 7U);
  for (std::uint64_t i = 1; i <= 69; ++i) ring.end(i, 100);
  EXPECT_EQ(ring.open()->record.sequence, 70U);
  EXPECT_FALSE(ring.open()->sent);
  ring.waits(70, true);
  EXPECT_TRUE(ring.open()->sent);
  ring.end(70, 100);
  EXPECT_FALSE(ring.open());
  EXPECT_EQ(ring.last()->sequence, 70U);
}

}  // namespace
