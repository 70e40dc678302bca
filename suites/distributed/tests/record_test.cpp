// What a rank writes down is what is read, and a torn or foreign file is told.
#include "suites/distributed/record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

namespace suites::distributed_ranks {
namespace {

using testing::HasSubstr;

class Record : public testing::Test {
 protected:
  ~Record() override { std::filesystem::remove(file_); }
  std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / ("record_test-" + std::to_string(getpid()) + ".jsonl");
};

TEST_F(Record, IsReadAsItWasWritten) {
  StepSeen step;
  step.step = 4;
  step.loss = std::nan("");
  step.norm = 0.1;
  step.lr = 1e-3;
  step.tokens = 64;
  step.stop = "nonfinite_loss";
  step.anomaly = "loss is NaN";
  step.rows = {"a", "b"};
  step.parameters = {{"head.weight", "00ff", 0.25, 2, false}};
  step.reduced_elements = 77;
  step.own_seconds = 0.5;
  {
    RecordWriter writer(file_, 1, 3);
    writer.launched(12.5, 1024);
    writer.at("step 4: backward");
    writer.step(step);
    writer.error({"timeout", "rank 2 is missing", {{"ranks", {2}}}});
  }
  const RankRecord read = read_record(file_, 1, 3);
  EXPECT_EQ(read.pid, getpid());
  EXPECT_EQ(read.clock_s, 12.5);
  EXPECT_EQ(read.shared_memory_bytes, 1024);
  EXPECT_EQ(read.last_moment(), "step 4: backward");
  ASSERT_EQ(read.steps.size(), 1u);
  EXPECT_EQ(to_json(read.steps.front()), to_json(step));
  ASSERT_TRUE(read.error.has_value());
  EXPECT_EQ(read.error->kind, "timeout");
  EXPECT_EQ(read.error->details["ranks"][0], 2);
  EXPECT_FALSE(read.done);
}

TEST_F(Record, OfARankThatNeverWroteIsEmpty) {
  const RankRecord read = read_record(file_, 2, 3);
  EXPECT_EQ(read.rank, 2);
  EXPECT_FALSE(read.done);
  EXPECT_EQ(read.last_moment(), "nowhere yet");
}

TEST_F(Record, AnUnfinishedLastLineIsLeftOut) {
  std::ofstream(file_) << R"({"at":"joined"})"
                       << "\n"
                       << R"({"done":tr)";
  const RankRecord read = read_record(file_, 0, 1);
  EXPECT_EQ(read.last_moment(), "joined");
  EXPECT_FALSE(read.done);
}

TEST_F(Record, ALineThatIsNoneIsRefusedWithItsPlace) {
  for (const char* line : {R"({"what":1})", "no JSON", R"({"step":1})", R"({"at":"x","pid":1,"rank":5,"size":3})"}) {
    std::ofstream(file_) << R"({"at":"joined"})"
                         << "\n"
                         << line << "\n";
    try {
      (void)read_record(file_, 0, 3);
      FAIL() << line;
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr(file_.string() + ":2: "));
    }
  }
}

TEST_F(Record, ThatCannotBeWrittenIsToldSo) {
  EXPECT_THROW(RecordWriter(file_ / "in no folder", 0, 1), std::runtime_error);
}

}  // namespace
}  // namespace suites::distributed_ranks
