#include "harness/worker_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/journal_writer.hpp"
#include "harness/tests/support/fake_run.hpp"

namespace {

using harness::WorkerLog;
using harness::tests::read_text;
using harness::tests::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(WorkerLog, IsNotWrittenThroughALink) {
  const TempFolder folder;
  folder.write("elsewhere/log", "precious");
  std::filesystem::create_directory_symlink("elsewhere", folder.path() / "logs");
  EXPECT_THROW(WorkerLog(folder.path() / "logs/log", 100), harness::InfrastructureError);
  std::filesystem::create_symlink("elsewhere/log", folder.path() / "name");
  EXPECT_THROW(WorkerLog(folder.path() / "name", 100), harness::InfrastructureError);
  EXPECT_EQ(read_text(folder.path() / "elsewhere/log"), "precious");
  WorkerLog(folder.path() / "nowhere/log", 100).add("a log that cannot be made is not worth a run\n");
}

TEST(WorkerLog, KeepsWhatFits) {
  const TempFolder folder;
  const auto file = folder.path() / "log";
  {
    WorkerLog log(file, 100);
    log.add("one\n");
    log.add("two\n");
    EXPECT_THAT(log.last_lines(), ElementsAre("one", "two"));
    log.add(WorkerLog::heading("s/c"));
    EXPECT_TRUE(log.last_lines().empty());
    log.add("three");
    EXPECT_THAT(log.last_lines(), ElementsAre("three"));
  }
  EXPECT_EQ(read_text(file), "one\ntwo\n--- case s/c\nthree");
}

TEST(WorkerLog, CutsAFloodAndKeepsItsEnd) {
  const TempFolder folder;
  const auto file = folder.path() / "log";
  {
    WorkerLog log(file, 1000);
    for (int i = 0; i < 100000; ++i) log.add("line " + std::to_string(i) + "\n");
    EXPECT_EQ(log.last_lines().size(), 20U);
    EXPECT_EQ(log.last_lines().back(), "line 99999");
  }
  const std::string text = read_text(file);
  EXPECT_LT(text.size(), 1000U + 4096 + 200);
  EXPECT_THAT(text, HasSubstr("bytes cut off"));
  EXPECT_THAT(text, HasSubstr("line 0\n"));
  EXPECT_THAT(text, HasSubstr("line 99999\n"));
}

TEST(WorkerLog, AFullDiskIsNotItsBusiness) {
  WorkerLog log("/dev/full", 1000);
  log.add("lost\n");
  EXPECT_THAT(log.last_lines(), ElementsAre("lost"));
}

}  // namespace
