#include "harness/progress.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

namespace {

using harness::Progress;
using reports::Severity;
using reports::Status;
using testing::HasSubstr;
using testing::Not;

std::string printed(const Progress::Options& options, const std::function<void(Progress&)>& act) {
  testing::internal::CaptureStderr();
  {
    Progress progress(options);
    act(progress);
  }
  return testing::internal::GetCapturedStderr();
}

void one_suite(Progress& progress) {
  progress.case_begin("s/a");
  progress.phase("warm-up");
  progress.finding({"C-1", Severity::block, "s/a", "wrong\nmore"});
  progress.finding({"C-2", Severity::info, "s/a", "not worth a line"});
  progress.case_end(Status::fail);
  progress.case_end(Status::skip);
  progress.suite_end("s");
}

TEST(ProgressTest, OneLineASuiteInAPipe) {
  const std::string text = printed({false, false, false, 2}, one_suite);
  EXPECT_EQ(text, "  C-1 block  s/a: wrong\ns              FAILED   0 passed, 1 failed, 1 skipped\n");
}

TEST(ProgressTest, ACaseThatIsRunOnceMoreIsToldWithItsReason) {
  const auto again = [](Progress& progress) {
    progress.case_begin("s/a");
    progress.retry("C-1 too slow (others were at work)\nmore");
  };
  EXPECT_EQ(printed({false, false, false, 2}, again), "  once more  s/a: C-1 too slow (others were at work)\n");
  EXPECT_EQ(printed({true, true, true, 2}, again), "");
}

TEST(ProgressTest, QuietIsSilent) { EXPECT_EQ(printed({true, true, true, 2}, one_suite), ""); }

TEST(ProgressTest, TheLiveLineIsRedrawnAndCleared) {
  const std::string text = printed({false, true, false, 2}, one_suite);
  EXPECT_THAT(text, HasSubstr("[1/2] 0s  s/a"));
  EXPECT_THAT(text, HasSubstr("\r\033[K  C-1 block"));
  EXPECT_THAT(text, Not(HasSubstr("[3/2]")));
}

TEST(ProgressTest, ColorIsAskedForOrATerminals) {
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(harness::want_color("auto", STDOUT_FILENO));
  EXPECT_TRUE(harness::want_color("always", STDOUT_FILENO));
  unsetenv("NO_COLOR");
  EXPECT_FALSE(harness::want_color("never", STDOUT_FILENO));
  setenv("CI", "1", 1);
  EXPECT_FALSE(base::want_live_line());
  unsetenv("CI");
}

}  // namespace
