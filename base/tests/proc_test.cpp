#include "base/proc.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <limits>

namespace base {
namespace {

namespace fs = std::filesystem;

class ProcFolder : public testing::Test {
 protected:
  ProcFolder() {
    std::string pattern = (fs::path(testing::TempDir()) / "proc.XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~ProcFolder() override { fs::remove_all(folder); }
  [[nodiscard]] std::optional<ProcessStat> read(const std::string& text) const {
    std::ofstream(folder / "stat") << text;
    return process_stat(folder);
  }
  fs::path folder;
};

TEST_F(ProcFolder, ANameMayHoldAnything) {
  for (const std::string name : {"sh", "a b", "x) S 1 (y", "((", "two\nlines) R 9"}) {
    const auto stat = read("7 (" + name + ") T 42 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19\n");
    ASSERT_TRUE(stat) << name;
    EXPECT_EQ(stat->name, name);
    EXPECT_EQ(stat->state, 'T');
    EXPECT_EQ(stat->parent, 42);
    const auto tick_s = 1 / static_cast<double>(sysconf(_SC_CLK_TCK));
    EXPECT_DOUBLE_EQ(stat->cpu_s, (14 + 15) * tick_s);
    EXPECT_DOUBLE_EQ(stat->ended_cpu_s, (16 + 17) * tick_s);
  }
}

TEST_F(ProcFolder, WhatIsNotAsTheKernelWritesItIsNoProcess) {
  EXPECT_FALSE(process_stat(folder));  // no file
  for (const char* text : {"", "7 sh R 1", "7 (sh R 1", "7 )sh( R 1 5 6 7 8 9 10 11 12 13 14 15 16 17",
                           "7 (sh) R 1 5 6 7 8 9 10 11 12 13 14 15 16", "7 (sh) R x 5 6 7 8 9 10 11 12 13 14 15 16 17"})
    EXPECT_FALSE(read(text)) << text;
}

TEST(Proc, TellsOfThisProcessAndOfItsChild) {
  const auto own = process_stat(getpid());
  ASSERT_TRUE(own);
  EXPECT_EQ(own->parent, getppid());
  EXPECT_EQ(own->state, 'R');
  EXPECT_FALSE(process_stat(std::numeric_limits<std::int32_t>::max()));

  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NAME, ") R 1 (");
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  const auto stopped = process_stat(child);
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->state, 'T');
  EXPECT_EQ(stopped->name, ") R 1 (");
  EXPECT_EQ(stopped->parent, getpid());
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_FALSE(process_stat(child));
}

TEST(Proc, ThisProcessLiesInMemory) {
  const auto bytes = resident_bytes();
  ASSERT_TRUE(bytes);
  EXPECT_GT(*bytes, 1 << 16);
}

}  // namespace
}  // namespace base
