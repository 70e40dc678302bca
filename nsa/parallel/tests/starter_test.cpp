#include "nsa/parallel/starter.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace {

using namespace nsa::parallel;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

RankProgram shell(const std::string& script, std::map<std::string, std::string> environment = {}) {
  return {{"/bin/sh", "-c", script}, std::move(environment)};
}

bool lives(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto end = text.rfind(')');
  return end != std::string::npos && text.at(end + 2) != 'Z';
}
bool dies_soon(pid_t pid) {
  for (int i = 0; i < 300 && lives(pid); ++i) std::this_thread::sleep_for(milliseconds(10));
  return !lives(pid);
}

TEST(Starter, EachRankHasItsVariablesAndStreams) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  ::setenv("STARTER_TEST", "outer", 1);
  RankProgram first = shell("echo $STARTER_TEST"),
              second = shell("echo $STARTER_TEST >&2", {{"STARTER_TEST", "inner"}});
  first.output = pipe[1];
  second.error = pipe[1];
  Ranks ranks({first});
  EXPECT_TRUE(ranks.wait(milliseconds(10'000))->well());
  Ranks more({second});
  EXPECT_TRUE(more.wait(milliseconds(10'000))->well());
  ::close(pipe[1]);
  std::array<char, 100> text{};
  const auto size = ::read(pipe[0], text.data(), text.size());
  EXPECT_EQ(std::string(text.data(), static_cast<std::size_t>(size)), "outer\ninner\n");
  ::close(pipe[0]);
}

TEST(Starter, HowEachEnded) {
  Ranks ranks({shell("exit 0"), shell("sleep 0.2; exit 7"), shell("sleep 0.4; kill -SEGV $$")});
  const auto ends = watch(ranks, {});
  ASSERT_THAT(ends, SizeIs(3));
  EXPECT_TRUE(ends[0].well());
  EXPECT_EQ(ends[1].rank, 1);
  EXPECT_EQ(ends[1].value, 7);
  EXPECT_THAT(describe(ends[1]), HasSubstr("ended with exit code 7"));
  EXPECT_TRUE(ends[2].by_signal);
  EXPECT_THAT(describe(ends[2]), HasSubstr("was killed by SIGSEGV"));
}

TEST(Starter, TheOthersHaveTheirTimeAndAreKilledThen) {
  Ranks ranks({shell("exit 1"), shell("sleep 0.3; exit 0"), shell("exec sleep 1000")});
  WatchOptions options;
  options.grace = milliseconds(800);
  const auto ends = watch(ranks, options);
  ASSERT_THAT(ends, SizeIs(3));
  EXPECT_TRUE(ends[1].well()) << "within the grace";
  EXPECT_TRUE(ends[2].ended_by_us);
  EXPECT_THAT(describe(ends[2]), HasSubstr("(by its starter)"));
}

TEST(Starter, AStoppedRankIsNotWaitedFor) {
  Ranks ranks({shell("exit 1"), shell("kill -STOP $$")});
  WatchOptions options;
  options.grace = std::chrono::minutes(10);
  EXPECT_THAT(watch(ranks, options), SizeIs(2));
}

TEST(Starter, ASignalIsPassedOnToAll) {
  const std::string ends_well = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
  Ranks ranks({shell(ends_well), shell(ends_well)});
  std::this_thread::sleep_for(milliseconds(300));  // for the traps to be set
  bool given = false;
  WatchOptions options;
  options.signal_to_pass_on = [&]() -> std::optional<int> {
    return std::exchange(given, true) ? std::nullopt : std::optional<int>(SIGTERM);
  };
  for (const auto& end : watch(ranks, options)) EXPECT_TRUE(end.well()) << describe(end);
}

TEST(Starter, WhatARankStartedEndsWithIt) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  RankProgram program = shell("sleep 1000 & echo $!; exit 3");
  program.output = pipe[1];
  Ranks ranks({program});
  ASSERT_TRUE(ranks.wait(milliseconds(10'000)));
  std::array<char, 20> text{};
  ASSERT_GT(::read(pipe[0], text.data(), text.size() - 1), 0);
  EXPECT_TRUE(dies_soon(std::stoi(text.data())));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Starter, AProgramThatIsNotThere) {
  try {
    const Ranks ranks({shell("exec sleep 1000"), {{"/no/such/program"}, {}}});
    FAIL() << "it was started";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), ENOENT);
    EXPECT_THAT(error.what(), HasSubstr("/no/such/program"));
  }
}

TEST(Starter, TheEndOfTheObjectEndsAll) {
  std::vector<pid_t> pids;
  {
    const Ranks ranks({shell("trap '' TERM; exec sleep 1000"), shell("exec sleep 1000")});
    pids = ranks.pids();
    EXPECT_EQ(ranks.alive(), 2U);
  }
  for (const pid_t pid : pids) EXPECT_FALSE(lives(pid));
}

// A starter in a process of its own, which is killed.
TEST(Starter, KilledItLeavesNobody) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t starter = ::fork();
  if (starter == 0) {
    Ranks ranks({shell("exec sleep 1000"), shell("exec sleep 1000")});
    for (const pid_t pid : ranks.pids()) (void)!::write(pipe[1], &pid, sizeof pid);
    for (;;) ::pause();
  }
  std::array<pid_t, 2> pids{};
  for (pid_t& pid : pids) ASSERT_EQ(::read(pipe[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  for (const pid_t pid : pids) EXPECT_TRUE(lives(pid));
  ::kill(starter, SIGKILL);
  ::waitpid(starter, nullptr, 0);
  for (const pid_t pid : pids) EXPECT_TRUE(dies_soon(pid));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
