#include "suites/implementation/spawn.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "harness/process.hpp"

namespace suites::implementation {
namespace {

struct Ended {
  int status = 0;
  std::string output;
};

// Runs `sh -c SCRIPT` to its end.
Ended run(const std::string& script, std::vector<int> passed = {}) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const harness::Fd read_end(ends[0]);
  harness::Fd write_end(ends[1]);
  const pid_t pid = spawn({{"sh", "-c", script}, {"SPAWN_TEST=new", "LC_ALL=C"}, write_end.get(), std::move(passed)});
  write_end.reset();
  Ended result;
  while (harness::read_available(read_end.get(), result.output)) {
  }
  EXPECT_EQ(waitpid(pid, &result.status, 0), pid);
  return result;
}

TEST(Spawn, StandardOutputAndErrorAreOne) { EXPECT_EQ(run("echo out; echo err >&2").output, "out\nerr\n"); }

TEST(Spawn, StandardInputIsEmpty) { EXPECT_EQ(run("cat; echo done").output, "done\n"); }

TEST(Spawn, TheEnvironmentIsOursWithChanges) {
  setenv("SPAWN_TEST", "old", 1);
  setenv("SPAWN_TEST_OTHER", "kept", 1);
  EXPECT_EQ(run("echo $SPAWN_TEST $SPAWN_TEST_OTHER; env | grep -c ^SPAWN_TEST=").output, "new kept\n1\n");
}

// Also where the numbers of the descriptors overlap with those that the child will have.
TEST(Spawn, DescriptorsAreNumberedInOrder) {
  int one[2], two[2];
  ASSERT_EQ(pipe2(one, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(two, O_CLOEXEC), 0);
  EXPECT_EQ(
      run("echo first >&3; echo second >&4; (echo third >&5) 2>/dev/null || echo closed", {two[1], one[1]}).output,
      "closed\n");
  char text[16] = {};
  EXPECT_EQ(read(two[0], text, sizeof text), 6);
  EXPECT_STREQ(text, "first\n");
  EXPECT_EQ(read(one[0], text, sizeof text), 7);
  for (const int fd : {one[0], one[1], two[0], two[1]}) close(fd);
}

TEST(Spawn, BlockedAndIgnoredSignalsAreNotPassedOn) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto handler = signal(SIGTERM, SIG_IGN);
  const Ended result = run("kill -TERM $$; echo alive");
  signal(SIGTERM, handler);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_TRUE(WIFSIGNALED(result.status));
  EXPECT_EQ(WTERMSIG(result.status), SIGTERM);
}

TEST(Spawn, AProgramThatIsNotThereIsAnError) {
  try {
    (void)spawn({{"no-such-program-at-all"}, {}, STDOUT_FILENO, {}});
    FAIL() << "nothing was thrown";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), ENOENT);
  }
}

TEST(Spawn, ADescriptorThatIsClosedIsAnError) {
  EXPECT_THROW((void)spawn({{"true"}, {}, 12345, {}}), std::system_error);
}

}  // namespace
}  // namespace suites::implementation
