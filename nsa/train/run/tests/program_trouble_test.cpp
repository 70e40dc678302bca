// nsa-train from outside where something is in its way: data, disk, checkpoints, signals, streams, files taken away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <regex>

#include "nsa/train/run/tests/program_runner.hpp"

namespace {

using namespace nsa::train::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(NsaTrain, UnreadableDataLosesNothing) {
  const Place place;
  const Outcome missing = place.train({"--data", place.file("no.txt").string()});
  EXPECT_EQ(missing.code, 4);
  EXPECT_THAT(missing.err, HasSubstr("no.txt"));
  EXPECT_FALSE(fs::exists(place.run() / "run.json"));  // not a run yet: nothing is in the way of the next try

  std::ofstream jsonl(place.file("x.jsonl"));
  for (int i = 0; i < 30; ++i) jsonl << R"({"text": "a line of text, number )" << i << "\"}\n";
  jsonl << "not json\n";
  for (int i = 0; i < 30; ++i) jsonl << R"({"text": "another line of text, number )" << i << "\"}\n";
  jsonl.close();
  const std::vector<std::string> arguments = {
      "--data", place.file("x.jsonl").string(), "--set",        "train.eval_every=0",
      "--set",  "train.validation_share=0",     "--save-every", "0"};
  const Outcome broken = place.train(arguments);
  EXPECT_EQ(broken.code, 4);
  EXPECT_THAT(broken.err, AllOf(HasSubstr("x.jsonl:31"), HasSubstr("--resume goes on from there")));
  const auto saved = names_in(place.run() / "checkpoints");
  ASSERT_EQ(saved.size(), 1U);
  EXPECT_EQ(lines(place.run() / "metrics.csv").size(), 1U + std::stoul(saved[0].substr(5)));
  auto again = arguments;
  again.insert(again.end(), {"--resume"});
  EXPECT_EQ(place.train(again).code, 4);
  EXPECT_EQ(names_in(place.run() / "checkpoints"), saved);
}

TEST(NsaTrain, AFullDiskLeavesTheCheckpointsThatAreThere) {
  const Place whole, place;
  const Outcome expected = whole.train({});
  ASSERT_EQ(expected.code, 0) << expected.err;
  ASSERT_EQ(place.train({"--steps", "4"}).code, 0);
  const auto saved = fs::file_size(place.run() / "checkpoints" / "step_00000004.safetensors");
  RunOptions full;
  full.file_size_limit = static_cast<long>(saved / 2);
  const Outcome outcome = place.train({"--resume"}, full);
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("step_00000008.safetensors.tmp: File too large"),
                                 HasSubstr("the newest checkpoint is of step 4")));
  EXPECT_THAT(names_in(place.run() / "checkpoints"), ElementsAre("step_00000004.safetensors"));
  const Outcome resumed = place.train({"--resume"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.last_line(), expected.last_line());
  EXPECT_EQ(figures(place.run()), figures(whole.run()));
}

TEST(NsaTrain, ATornCheckpointIsToldAndTheOneBeforeUsed) {
  const Place place;
  const Outcome expected = place.train({});
  ASSERT_EQ(expected.code, 0) << expected.err;
  const auto before = figures(place.run());
  const fs::path newest = place.run() / "checkpoints" / "step_00000012.safetensors";
  fs::resize_file(newest, fs::file_size(newest) - 100);
  const Outcome resumed = place.train({"--resume"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr(newest.string() + " is cut off"), HasSubstr("goes on from step 8")));
  EXPECT_EQ(resumed.last_line(), expected.last_line());
  EXPECT_EQ(figures(place.run()), before);
}

TEST(NsaTrain, SignalsEndItAfterACheckpoint) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}, std::pair{SIGHUP, 143},
                                     std::pair{SIGUSR1, 143}, std::pair{SIGXCPU, 143}}) {
    const Place place;
    Child child(place.options({"--steps", "100000", "--save-every", "0", "--set", "train.eval_every=0"}),
                place.file("child"));
    ASSERT_TRUE(child.says("step 3/"));
    child.send(signal);
    const Outcome outcome = child.wait();
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.last_line(),
                AllOf(StartsWith("stopped: step="), HasSubstr(std::string("reason=SIG") + sigabbrev_np(signal))));
    const auto saved = names_in(place.run() / "checkpoints");
    ASSERT_EQ(saved.size(), 1U);
    EXPECT_EQ(records(place.run(), "signal").size(), 1U);
    // What it saved is what it printed.
    const std::string step = std::to_string(std::stoi(saved[0].substr(5)));
    const Outcome again =
        place.train({"--steps", step, "--resume", "--set", "train.steps=100000", "--set", "train.eval_every=0"});
    EXPECT_EQ(again.code, 0) << again.err;
    const auto figures_of = [](const std::string& line) {
      return line.substr(line.find("step="), line.find(" reason") - line.find("step="));
    };
    EXPECT_EQ(figures_of(again.last_line()), figures_of(outcome.last_line()));
  }
}

TEST(NsaTrain, StreamsThatCannotBeWrittenAreRefusedBeforeTheRun) {
  const Place place;
  const Outcome full = place.train({}, {.out_to = "/dev/full"});
  EXPECT_EQ(full.code, 4);
  EXPECT_EQ(full.err,
            "nsa-train: error: standard output cannot be written: No space left on device; nothing was done\n");
  const Outcome closed = place.train({}, {.err_to = "closed"});
  EXPECT_EQ(closed.code, 4);
  EXPECT_EQ(closed.out, "nsa-train: error: standard error cannot be written: Bad file descriptor; nothing was done\n");
  EXPECT_FALSE(fs::exists(place.run()));
  EXPECT_EQ(place.train({"--help"}, {.out_to = "/dev/full"}).code, 4);
}

TEST(NsaTrain, AReaderThatGoesAwayCostsNoStep) {
  const Place place;
  const fs::path pipe = place.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Child child(place.options({}, {.err_to = pipe.string()}), place.file("child"));
  {
    std::ifstream reader(pipe);
    std::string line;
    std::getline(reader, line);
  }
  const Outcome outcome = child.wait();
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.out, HasSubstr("nsa-train: error: standard error cannot be written: Broken pipe"));
  EXPECT_THAT(outcome.last_line(), StartsWith("final: step=12 "));
  EXPECT_EQ(records(place.run(), "lost_output").size(), 1U);
  EXPECT_EQ(records(place.run(), "finished").size(), 1U);
}

// Exit code 4 and what was taken, at the next row, and nothing is put where another run may be by then.
TEST(NsaTrain, OutputThatIsTakenAwayEndsTheRun) {
  struct Harm {
    const char* words;
    std::function<void(const fs::path&)> act;
    std::vector<std::string> left;  // in the folder
  };
  const std::vector<Harm> harms = {
      {"run: deleted or moved away", [](const fs::path& run) { fs::remove_all(run); }, {}},
      {"run: deleted or moved away", [](const fs::path& run) { fs::rename(run, run.string() + ".moved"); }, {}},
      {".lock: deleted or moved away",
       [](const fs::path& run) { fs::remove(run / ".lock"); },
       {"dtypes.txt", "heartbeat.jsonl", "metrics.csv", "run.json"}}};
  for (const Harm& harm : harms) {
    const Place place;
    Child child(place.options({"--steps", "100000", "--save-every", "0", "--set", "train.eval_every=0"}),
                place.file("child"));
    ASSERT_TRUE(child.says("step 3/"));
    child.stop();  // a folder goes file by file: between two of them the run would see a table that is gone
    harm.act(place.run());
    child.send(SIGCONT);
    const Outcome outcome = child.wait();
    EXPECT_EQ(outcome.code, 4) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(harm.words), HasSubstr("this run had made no checkpoint")));
    EXPECT_EQ(names_in(place.run()), harm.left);
  }
}

TEST(NsaTrain, ATableThatIsTakenAwayEndsTheRunButNotItsSteps) {
  for (const char* name : {"metrics.csv", "validation.csv", "heartbeat.jsonl"}) {
    const Place place;
    const std::vector<std::string> arguments = {"--steps", "100000", "--save-every",
                                                "0",       "--set",  "train.eval_every=3"};
    Child child(place.options(arguments), place.file("child"));
    ASSERT_TRUE(child.says("step 3/"));
    fs::remove(place.run() / name);
    const Outcome outcome = child.wait();
    EXPECT_EQ(outcome.code, 4) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr(std::string("error: ") + (place.run() / name).string() + ": deleted or moved away"),
                      HasSubstr("--resume goes on from there")));
    EXPECT_EQ(names_in(place.run() / "checkpoints").size(), 1U) << name;
  }
}

TEST(NsaTrain, WhoLosesTheLockLeavesTheFolderToTheOther) {
  const Place place;
  Child first(place.options({"--steps", "100000", "--save-every", "5", "--set", "train.log_every=100000", "--set",
                             "train.eval_every=0"}),
              place.file("first"));
  ASSERT_TRUE(first.says("step 1/"));
  fs::remove(place.run() / ".lock");
  const Outcome second = place.train({"--steps", "3", "--force"});
  EXPECT_EQ(second.code, 0) << second.err;
  const Outcome outcome = first.wait();
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(".lock: "));
  EXPECT_EQ(place.train({"--steps", "3", "--resume"}).last_line(), second.last_line());
}

TEST(NsaTrain, APipeInTheFolderHoldsNothingUp) {
  const Place place;
  ASSERT_EQ(place.train({"--steps", "2"}).code, 0);
  fs::remove(place.run() / "metrics.csv");
  ASSERT_EQ(::mkfifo((place.run() / "metrics.csv").c_str(), 0600), 0);
  const Outcome outcome = place.train({"--steps", "2", "--resume"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("metrics.csv is no regular file"));
  fs::remove(place.run() / "metrics.csv");
  ASSERT_EQ(::mkfifo((place.run() / ".HALT").c_str(), 0600), 0);
  EXPECT_EQ(place.train({"--steps", "2", "--resume"}).code, 5) << "whatever has this name is an order to stop";
}

TEST(NsaTrain, WhatIsMissingBeforeAResumeIsTold) {
  const Place place;
  ASSERT_EQ(place.train({"--steps", "3"}).code, 0);
  fs::remove(place.run() / "metrics.csv");
  const Outcome rows = place.train({"--steps", "3", "--resume", "--quiet"});
  EXPECT_EQ(rows.code, 0);
  EXPECT_THAT(rows.err, HasSubstr("metrics.csv has no rows, though 3 steps are made"));
  const fs::path newest = place.run() / "checkpoints" / "step_00000003.safetensors";
  fs::resize_file(newest, 10);
  const Outcome broken = place.train({"--steps", "3", "--resume", "--quiet"});
  EXPECT_EQ(broken.code, 0);
  EXPECT_THAT(broken.err, AllOf(HasSubstr("set aside as step_00000003.safetensors.broken, there is none before it"),
                                HasSubstr("training starts anew")));
  fs::remove_all(place.run() / "checkpoints");
  const Outcome none = place.train({"--steps", "3", "--resume", "--quiet"});
  EXPECT_EQ(none.code, 0);
  EXPECT_EQ(none.last_line(), broken.last_line());
  EXPECT_EQ(none.err, "nsa-train: there is no sound checkpoint of this run in " +
                          (place.run() / "checkpoints").string() + ": training starts anew\n");
}

}  // namespace
