#include "harness/protocol.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using harness::LineReader;
using harness::ProtocolViolation;
using harness::WorkOrder;

TEST(Protocol, AnOrderSurvivesTheTrip) {
  WorkOrder order;
  order.supervisor = 123;
  order.worker = 4;
  order.suite = "s";
  order.cases = {"s/a[x=1]", "s/b"};
  order.faults = {"f"};
  order.seed = 0xffffffffffffffffULL;
  order.cuda = true;
  order.folder = "/a folder";
  order.run_id = "id";
  order.provenance = {{"k", 1}};
  const WorkOrder back = harness::parse_order(harness::to_text(order));
  EXPECT_EQ(back.supervisor, 123);
  EXPECT_EQ(back.cases, order.cases);
  EXPECT_EQ(back.faults, order.faults);
  EXPECT_EQ(back.seed, order.seed);
  EXPECT_TRUE(back.cuda);
  EXPECT_EQ(back.folder, order.folder);
  EXPECT_EQ(back.provenance, order.provenance);
}

TEST(Protocol, AnOrderThatIsNoneIsAUsageError) {
  EXPECT_THROW((void)harness::parse_order(""), harness::UsageError);
  EXPECT_THROW((void)harness::parse_order("{}"), harness::UsageError);
  EXPECT_THROW((void)harness::parse_order("[1]"), harness::UsageError);
}

TEST(Protocol, SettingsOfTheSupervisorAreThoseOfTheWorker) {
  const harness::Program program;
  harness::Settings here(harness::all_setting_specs(program)), there(harness::all_setting_specs(program));
  here.set("run.hang_s", "0.5", "ci.yaml:3");
  here.set("run.seed", "7", "--seed");
  harness::apply_settings(there, harness::changed_settings(here));
  EXPECT_DOUBLE_EQ(there.real("run.hang_s"), 0.5);
  EXPECT_EQ(there.integer("run.seed"), 7);
  EXPECT_EQ(there.values().at("run.hang_s").origin, "ci.yaml:3");
  EXPECT_EQ(there.values().at("run.gates").origin, "default");
}

TEST(Protocol, LinesArriveInAnyPieces) {
  LineReader reader;
  std::string line;
  reader.feed("ab");
  EXPECT_FALSE(reader.next(line));
  EXPECT_EQ(reader.partial(), "ab");
  reader.feed("c\n\nd\ne");
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line, "abc");
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line, "");
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line, "d");
  EXPECT_FALSE(reader.next(line));
  EXPECT_EQ(reader.partial(), "e");
  reader.feed("f\n");
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line, "ef");
}

TEST(Protocol, ALineHasALimit) {
  std::string line;
  LineReader endless;
  endless.feed(std::string(harness::kMaxLine, 'x'));
  EXPECT_THROW((void)endless.next(line), ProtocolViolation);
  LineReader ended;
  ended.feed(std::string(harness::kMaxLine, 'x') + "\n");
  EXPECT_THROW((void)ended.next(line), ProtocolViolation);
  LineReader longest;
  longest.feed(std::string(harness::kMaxLine - 1, 'x') + "\n");
  EXPECT_TRUE(longest.next(line));
}

}  // namespace
