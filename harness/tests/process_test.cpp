#include "harness/process.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "harness/journal_writer.hpp"

namespace {

using harness::Exit;
using harness::Process;

std::vector<std::string> shell(const std::string& script) { return {"sh", "-c", script}; }

Exit finish(Process& process) {
  pollfd end = {process.pid_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 20000), 1);
  return process.reap();
}

std::string read_all(int fd) {
  std::string text;
  for (int i = 0; i < 2000 && harness::read_available(fd, text); ++i) {
    pollfd more = {fd, POLLIN, 0};
    poll(&more, 1, 10);
  }
  return text;
}

TEST(Process, InputOutputAndEventsAreThreeThings) {
  Process process("sh", shell("read line; echo \"out $line\"; echo err >&2; echo event >&3"));
  process.give("the input\n");
  EXPECT_EQ(read_all(process.event_fd()), "event\n");
  EXPECT_EQ(read_all(process.output_fd()), "out the input\nerr\n");
  const Exit exit = finish(process);
  EXPECT_FALSE(exit.by_signal);
  EXPECT_EQ(exit.value, 0);
}

TEST(Process, ExitStatusAndSignalAreToldApart) {
  Process status("sh", shell("exit 7"));
  const Exit seven = finish(status);
  EXPECT_FALSE(seven.by_signal);
  EXPECT_EQ(seven.value, 7);
  Process killed("sh", shell("kill -SEGV $$"));
  const Exit segv = finish(killed);
  EXPECT_TRUE(segv.by_signal);
  EXPECT_EQ(segv.value, SIGSEGV);
}

TEST(Process, TheWholeGroupIsKilled) {
  Process process("sh", shell("sleep 1000 & echo $!; wait"));
  std::string text;
  while (text.find('\n') == std::string::npos) harness::read_available(process.output_fd(), text);
  const pid_t grandchild = std::stoi(text);
  EXPECT_EQ(kill(grandchild, 0), 0);
  process.signal_group(SIGTERM);
  finish(process);
  bool gone = false;
  for (int i = 0; i < 500 && !gone; ++i) {
    // A zombie that nobody has collected yet is gone, too.
    std::string stat = harness::output_of({"cat", "/proc/" + std::to_string(grandchild) + "/stat"}, 5).value_or("");
    gone = stat.empty() || stat.find(") Z ") != std::string::npos;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(gone);
}

TEST(Process, CpuTimeCountsChildrenToo) {
  Process process("sh", shell("sh -c 'while :; do :; done' & wait"));
  double cpu = 0;
  for (int i = 0; i < 1000 && cpu < 0.05; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    cpu = process.cpu_seconds();
  }
  EXPECT_GE(cpu, 0.05);
}

TEST(Process, CpuTimeOfAChildThatEndedIsNotLost) {
  Process process("sh", shell("sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; read line"));
  bool found = false;
  for (int i = 0; i < 1000 && !found; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    found = process.cpu_seconds() >= 0.03 && process.tree() == std::vector{process.pid()};
  }
  EXPECT_TRUE(found) << process.cpu_seconds() << " s";
  process.give("go\n");
  EXPECT_EQ(finish(process).value, 0);
}

TEST(Process, AnInputThatNobodyReadsBlocksNobody) {
  Process process("sh", shell("exit 0"));
  process.give(std::string(1 << 19, 'x'));
  EXPECT_EQ(finish(process).value, 0);
}

TEST(Process, AnInputForAChildThatIsGoneIsNoError) {
  Process process("sh", shell("exit 0"));
  pollfd end = {process.pid_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 20000), 1);
  process.give("too late");
  EXPECT_EQ(process.reap().value, 0);
}

TEST(Process, TheChildWaitsForItsInput) {
  Process process("sh", shell("echo ready >&3; cat; echo done >&3"));
  std::string events;
  while (events != "ready\n") harness::read_available(process.event_fd(), events);
  pollfd end = {process.pid_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 50), 0);
  process.give("later");
  EXPECT_EQ(read_all(process.event_fd()), "done\n");
  EXPECT_EQ(finish(process).value, 0);
}

TEST(Process, WhatCannotBeStartedIsSaid) {
  EXPECT_THROW(Process("/nonexistent/program", {"x"}), harness::InfrastructureError);
}

TEST(Process, OutputOfAShortCommand) {
  EXPECT_EQ(harness::output_of({"echo", "hello"}, 10), "hello\n");
  EXPECT_EQ(harness::output_of({"false"}, 10), std::nullopt);
  EXPECT_EQ(harness::output_of({"sleep", "100"}, 0.1), std::nullopt);
  EXPECT_EQ(harness::output_of({"no-such-command-at-all"}, 1), std::nullopt);
}

TEST(Process, SignalsHaveNames) {
  EXPECT_EQ(harness::signal_name(SIGSEGV), "SIGSEGV (Segmentation fault)");
  EXPECT_EQ(harness::signal_name(12345), "signal 12345");
}

}  // namespace
