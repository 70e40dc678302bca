// written_down, of runs that are stopped, diverge or find a broken checkpoint.
#include "suites/training/tests/written.hpp"

namespace suites::training_cases {
namespace {

TEST_F(WrittenDown, RefusalsOfTheProductHold) {
  const WrittenTrial trial = quick_trial(WrittenData::text, folder);
  ASSERT_TRUE(make_written_run(trial, context).finished());
  judge_refusals(trial, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_EQ(context.checks, 8);
}

TEST_F(WrittenDown, StopsOfTheProductLeaveACheckpoint) {
  WrittenTrial trial = quick_trial(WrittenData::text, folder / "run");  // the stopped ones come beside it
  judge_stop(trial, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_EQ(context.checks, 6);  // by .HALT and by SIGTERM
}

TEST_F(WrittenDown, ADivergenceOfTheProductIsStoppedWithItsCheckpoints) {
  judge_divergence(quick_trial(WrittenData::text, folder), context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_EQ(context.checks, 2);
}

TEST_F(WrittenDown, ARowThatStandsTwiceIsFound) {
  write_text(folder / "metrics.csv", "step,loss\n1,5.5\n2,5.4\n");
  judge_rows(folder / "metrics.csv", {1, 2}, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  write_text(folder / "metrics.csv", "step,loss\n1,5.5\n2,5.4\n2,5.4\n");
  judge_rows(folder / "metrics.csv", {1, 2}, context);
  EXPECT_EQ(finding(context, codes::kGuardMissed).evidence["promise"],
            "a resume cuts metrics.csv back to its checkpoint");
}

}  // namespace
}  // namespace suites::training_cases
