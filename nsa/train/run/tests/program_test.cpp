// nsa-train from outside: what it says, what it leaves, how it ends.
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
using ::testing::IsEmpty;
using ::testing::StartsWith;

// The columns of metrics.csv that do not depend on time: step, loss, lr, grad_norm.
std::vector<std::string> figures(const fs::path& run) {
  std::vector<std::string> rows;
  for (const auto& line : lines(run / "metrics.csv")) {
    std::size_t end = 0;
    for (int i = 0; i < 4; ++i) end = line.find(',', end) + 1;
    rows.push_back(line.substr(0, end));
  }
  return rows;
}

TEST(NsaTrain, TrainsToTheEndAndLeavesItsRecords) {
  const Place place;
  const Outcome outcome = place.train({});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(std::regex_match(outcome.out, std::regex("final: step=12 loss=[0-9.]+ weights=[0-9a-f]{16}\n")))
      << outcome.out;
  EXPECT_THAT(names_in(place.run()), ElementsAre(".lock", "checkpoints", "dtypes.txt", "heartbeat.jsonl", "metrics.csv",
                                                 "run.json", "validation.csv"));
  EXPECT_THAT(names_in(place.run() / "checkpoints"),
              ElementsAre("step_00000004.safetensors", "step_00000008.safetensors", "step_00000012.safetensors"));
  const auto metrics = lines(place.run() / "metrics.csv");
  ASSERT_EQ(metrics.size(), 13U);
  EXPECT_EQ(metrics[0],
            "step,loss,lr,grad_norm,tok_per_s,step_s,fetch_p50_ms,fetch_p95_ms,tokens,seconds,validation_loss");
  EXPECT_TRUE(std::regex_match(metrics[12], std::regex("12,.*,1536,[0-9.e-]+,[0-9.]+"))) << metrics[12];
  EXPECT_THAT(metrics[11], ::testing::EndsWith(","));  // no validation in step 11
  const auto validation = lines(place.run() / "validation.csv");
  ASSERT_EQ(validation.size(), 3U);
  EXPECT_THAT(validation[2], StartsWith("12,"));

  const auto run = nlohmann::json::parse(content(place.run() / "run.json"));
  EXPECT_EQ(run["config"]["train.seq_len"], "32");
  const auto& start = run["starts"][0];
  EXPECT_EQ(start["build"]["id"].get<std::string>().size(), 16U);
  EXPECT_EQ(start["flags"]["sel_pack"]["origin"], "default");
  EXPECT_THAT(start["torch"]["version"].get<std::string>(), StartsWith("2.11"));
  EXPECT_EQ(start["device"]["type"], "cpu");

  EXPECT_THAT(lines(place.run() / "dtypes.txt")[1], HasSubstr("Float"));
  const auto progress = records(place.run(), "progress");
  ASSERT_EQ(progress.size(), 12U);
  for (const char* field :
       {"ts", "iso", "pid", "run", "step", "phase", "loss", "lr", "grad_norm", "tok_per_s", "step_s", "fetch_p50_ms",
        "fetch_p95_ms", "rss_bytes", "gate_entropy_mean", "gate_branch_shares"})
    EXPECT_TRUE(progress[3].contains(field)) << field;
  EXPECT_EQ(progress[3]["step"], 4);
  EXPECT_NEAR(progress[0]["gate_entropy_mean"], 1.098, 0.01);  // ln 3, as good as even at the start
  EXPECT_EQ(records(place.run(), "checkpoint").size(), 3U);
  EXPECT_EQ(records(place.run(), "finished").size(), 1U);
}

TEST(NsaTrain, ResumeRepeatsTheLastLineOfAFinishedRun) {
  const Place place;
  const Outcome first = place.train({"--steps", "3"});
  ASSERT_EQ(first.code, 0) << first.err;
  const auto files = names_in(place.run() / "checkpoints");
  const Outcome second = place.train({"--steps", "3", "--resume"});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.last_line(), first.last_line());
  EXPECT_EQ(names_in(place.run() / "checkpoints"), files);
}

// The step of a CUDA graph is the same step, so a run may go on with it.
TEST(NsaTrain, ARunGoesOnWithTheStepOfAGraph) {
  const Place whole, parts;
  const Outcome expected = whole.train({"--steps", "9"});
  ASSERT_EQ(expected.code, 0) << expected.err;
  EXPECT_EQ(parts.train({"--steps", "4"}).code, 0);
  const Outcome resumed =
      parts.train({"--steps", "9", "--resume", "--set", "train.cuda_graph=true", "--set", "train.log_every=8"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.last_line(), expected.last_line());
  EXPECT_THAT(resumed.err, HasSubstr("train.cuda_graph: there are no graphs on cpu"));
  EXPECT_EQ(records(parts.run(), "progress").back()["graph_replays"], 0);
}

TEST(NsaTrain, AGraphThatCannotBeIsRefused) {
  const Place place;
  const Outcome packed =
      place.train({"--set", "train.cuda_graph=true", "--set", "train.packed=true", "--set", "train.batch_size=1"});
  EXPECT_EQ(packed.code, 2);
  EXPECT_THAT(packed.err, HasSubstr("train.cuda_graph = true: must be auto or false with train.packed (true)"));
  const Outcome strict =
      place.train({"--set", "train.cuda_graph=true"}, {.environment = {{"NSA_STRICT_ASSERTS", "1"}}});
  EXPECT_EQ(strict.code, 2);
  EXPECT_THAT(strict.err, HasSubstr("train.cuda_graph = true: NSA_STRICT_ASSERTS"));
}

TEST(NsaTrain, MoreStepsLaterAreTheStepsOfALongerRun) {
  const Place whole, parts;
  const Outcome expected = whole.train({"--steps", "9"});
  ASSERT_EQ(expected.code, 0) << expected.err;
  EXPECT_EQ(parts.train({"--steps", "5", "--resume"}).code, 0);  // nothing there yet: starts anew
  const Outcome resumed = parts.train({"--steps", "9", "--resume"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.last_line(), expected.last_line());
  EXPECT_EQ(figures(parts.run()), figures(whole.run()));
  EXPECT_EQ(nlohmann::json::parse(content(parts.run() / "run.json"))["starts"].size(), 2U);
}

TEST(NsaTrain, OnAGpuToo) {
  const Place whole, parts;
  const auto train = [](const Place& place, const std::string& steps) {
    RunOptions options;
    options.arguments = {"--config",
                         place.file("small.yaml").string(),
                         "--out",
                         place.run().string(),
                         "--resume",
                         "--steps",
                         steps,
                         "--device",
                         "cuda",
                         "--set",
                         "train.precision=bf16",
                         "--set",
                         "train.deterministic=true"};
    return Child(options, place.file("child")).wait();
  };
  const Outcome expected = train(whole, "12");
  if (expected.code == 4 && expected.err.find("no usable GPU") != std::string::npos) GTEST_SKIP() << "no CUDA device";
  ASSERT_EQ(expected.code, 0) << expected.err;
  EXPECT_EQ(train(parts, "5").code, 0);
  EXPECT_EQ(train(parts, "12").last_line(), expected.last_line());
  EXPECT_EQ(figures(parts.run()), figures(whole.run()));
  const auto start = nlohmann::json::parse(content(whole.run() / "run.json"))["starts"][0];
  EXPECT_GT(start["device"]["bytes"], 1 << 30);
  EXPECT_TRUE(start["device"]["driver"].is_string());
  EXPECT_GT(records(whole.run(), "progress").back()["gpu_allocated_bytes"], 0);
  EXPECT_THAT(content(whole.run() / "dtypes.txt"), HasSubstr("BFloat16"));
}

TEST(NsaTrain, ARunInTheWayIsNeverLost) {
  const Place place;
  const Outcome first = place.train({"--steps", "2"});
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string metrics = content(place.run() / "metrics.csv");
  const Outcome refused = place.train({"--steps", "3"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("holds a run"), HasSubstr("--resume"), HasSubstr("--force")));
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(content(place.run() / "metrics.csv"), metrics);
  std::ofstream(place.run() / "notes.txt") << "mine";
  const Outcome forced = place.train({"--steps", "3", "--force"});
  EXPECT_EQ(forced.code, 0) << forced.err;
  EXPECT_EQ(lines(place.run() / "metrics.csv").size(), 4U);
  EXPECT_EQ(content(place.run() / "notes.txt"), "mine");
}

TEST(NsaTrain, TwoProcessesDoNotShareAFolder) {
  const Place place;
  Child first(place.options({"--steps", "100000", "--set", "train.eval_every=0"}), place.file("first"));
  ASSERT_TRUE(first.says("step 2/"));
  const Outcome second = place.train({"--resume"});
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.err, HasSubstr("another process trains in"));
}

TEST(NsaTrain, EveryMistakeOfTheConfigurationAtOnce) {
  const Place place;
  const Outcome outcome = place.train({"--set", "train.lr=fast", "--set", "train.save_evry=3", "--save-every", "-1"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("3 mistake(s)"), HasSubstr("--set: train.lr = fast: must be a number"),
                    HasSubstr("did you mean train.save_every?"), HasSubstr("--save-every: train.save_every = -1")));
  EXPECT_FALSE(fs::exists(place.run()));
}

TEST(NsaTrain, UsageErrors) {
  const Place place;
  const auto refusal = [&](const std::vector<std::string>& arguments) {
    const Outcome outcome = Child({.arguments = arguments}, place.file("child")).wait();
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(refusal({}), HasSubstr("--config is required"));
  EXPECT_THAT(refusal({"--config", "x.yaml"}), HasSubstr("--out is required"));
  EXPECT_THAT(refusal({"--config", "no/such.yaml", "--out", place.run()}),
              HasSubstr("no/such.yaml: configuration file: does not exist"));
  const std::string config = place.file("small.yaml").string();
  EXPECT_THAT(refusal({"--config", config, "--out", place.run(), "--stepps", "3"}), HasSubstr("--stepps"));
  EXPECT_THAT(refusal({"--config", config, "--out", place.run(), "--steps", "0"}), HasSubstr("--steps"));
  EXPECT_THAT(refusal({"--config", config, "--out", place.run(), "--set", "lr"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(refusal({"--config", config, "--out", place.run(), "--resume", "--force"}), HasSubstr("excludes"));
  EXPECT_THAT(refusal({"--config", config, "--out", place.run(), "--device", "tpu"}), HasSubstr("--device"));
  RunOptions flags = place.options({});
  flags.environment["NSA_USE_FA2"] = "maybe";
  const Outcome flag = Child(flags, place.file("child")).wait();
  EXPECT_EQ(flag.code, 2);
  EXPECT_THAT(flag.err, HasSubstr("NSA_USE_FA2"));
}

TEST(NsaTrain, LinksThatLeadInCirclesAreToldByName) {
  const Place place;
  const fs::path loop = place.file("loop");
  fs::create_symlink(loop, loop);
  const auto refusal = [&](int code, const std::vector<std::string>& arguments) {
    const Outcome outcome = Child({.arguments = arguments}, place.file("child")).wait();
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(loop.string()), HasSubstr("Too many levels of symbolic links")));
  };
  const std::string config = place.file("small.yaml").string();
  refusal(2, {"--config", loop, "--out", place.run()});
  refusal(4, {"--config", config, "--out", place.run(), "--data", loop});
  refusal(4, {"--config", config, "--out", loop});
}

TEST(NsaTrain, AnotherConfigurationDoesNotGoOnWithTheRun) {
  const Place place;
  ASSERT_EQ(place.train({"--steps", "2"}).code, 0);
  const Outcome outcome = place.train({"--steps", "4", "--resume", "--set", "train.lr=1e-4", "--set", "model.dim=64"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("train.lr is 0.003 there and 0.0001 here"),
                                 HasSubstr("model.dim is 32 there and 64 here")));
  EXPECT_EQ(place.train({"--steps", "4", "--resume", "--set", "train.log_every=2"}).code, 0);
}

TEST(NsaTrain, ChangedFlagsAreTold) {
  const Place place;
  ASSERT_EQ(place.train({"--steps", "2"}).code, 0);
  RunOptions options;
  options.environment["NSA_FORCE_SEL_MASK"] = "1";
  options.environment["NSA_USE_FA"] = "1";
  options.environment["NSA_USE_FA2"] = "1";
  const Outcome outcome = place.train({"--steps", "4", "--resume"}, options);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("flag sel_mask was"), HasSubstr("NSA_USE_FA is no flag of this program"),
                                 HasSubstr("NSA_USE_FA2=1 asks for flash in attend_window, which sdpa does: "),
                                 HasSubstr("flash refused: ")));
}

TEST(NsaTrain, TooLittleMemoryIsTheMachinesFault) {
  const Place place;
  RunOptions options;
  options.address_space_limit = 16L << 30;
  const Outcome outcome = place.train({"--set", "model.vocab=16777216", "--set", "model.dim=4096"}, options);
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("memory"));
}

TEST(NsaTrain, TheEndOfTheDataStopsTheRun) {
  const Place place;
  std::ofstream(place.file("short.txt")) << std::string(700, 'a');  // 630 to train on: 19 rows of 32 and a rest
  const std::vector<std::string> arguments = {"--data", place.file("short.txt").string(), "--set",
                                              "train.eval_every=0"};
  const Outcome outcome = place.train(arguments);
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the data has ended"));
  EXPECT_THAT(outcome.last_line(), AllOf(StartsWith("stopped: step=5 "), HasSubstr("reason=end_of_data")));
  EXPECT_THAT(names_in(place.run() / "checkpoints"),
              ElementsAre("step_00000004.safetensors", "step_00000005.safetensors"));
  auto again = arguments;
  again.push_back("--resume");
  const Outcome resumed = place.train(again);
  EXPECT_EQ(resumed.code, 3);
  EXPECT_EQ(resumed.last_line(), outcome.last_line());
}

TEST(NsaTrain, SeveralPassesGoOnBitForBit) {
  const Place whole, parts;
  const auto train = [](const Place& place, const char* epochs, const char* steps) {
    std::ofstream(place.file("short.txt")) << std::string(350, 'a') << std::string(350, 'b');
    return place.train({"--data", place.file("short.txt").string(), "--set", "train.eval_every=0", "--set",
                        "train.order=shuffled", "--set", std::string("train.epochs=") + epochs, "--steps", steps,
                        "--resume"});
  };
  const Outcome expected = train(whole, "0", "12");
  ASSERT_EQ(expected.code, 0) << expected.err;
  EXPECT_EQ(train(parts, "1", "12").code, 3);  // the data ends in step 6
  const Outcome resumed = train(parts, "3", "12");
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.last_line(), expected.last_line());
  EXPECT_EQ(figures(parts.run()), figures(whole.run()));
  const auto tokens = [](const Place& place) { return records(place.run(), "progress").back()["tokens"]; };
  EXPECT_EQ(tokens(parts), tokens(whole));
}

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
    child.send(SIGSTOP);  // a folder goes file by file: between two of them the run would see a table that is gone
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

TEST(NsaTrain, HelpSaysHowItEnds) {
  const Place place;
  const Outcome help = Child({.arguments = {"--help"}}, place.file("child")).wait();
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("final: step=N loss=X weights=HASH"), HasSubstr("130 and 143")));
  EXPECT_EQ(Child({.arguments = {"--version"}}, place.file("child")).wait().code, 0);
}

}  // namespace
