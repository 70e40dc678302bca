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
using ::testing::StartsWith;

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

TEST(NsaTrain, HelpSaysHowItEnds) {
  const Place place;
  const Outcome help = Child({.arguments = {"--help"}}, place.file("child")).wait();
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("final: step=N loss=X weights=HASH"), HasSubstr("130 and 143")));
  EXPECT_EQ(Child({.arguments = {"--version"}}, place.file("child")).wait().code, 0);
}

}  // namespace
