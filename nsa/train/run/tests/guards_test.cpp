// What stops a run from inside and outside: values that are not finite, HALT files, hangs, kills. With planted faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "nsa/train/run/tests/program_runner.hpp"

namespace {

using namespace nsa::train::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Step 6 is not made (two batches a step: its first backward pass is the eleventh), the run can go on before it.
void expect_anomaly_stop(const std::string& fault, const std::string& name) {
  const Place clean, place;
  const Outcome expected = clean.train({});
  ASSERT_EQ(expected.code, 0) << expected.err;
  const Outcome outcome = place.train({}, {.plant = fault + "@11"});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("step 6 is not made: " + name), HasSubstr("first bad parameter")));
  EXPECT_THAT(outcome.last_line(), AllOf(StartsWith("stopped: step=5 "), HasSubstr("reason=" + name)));
  EXPECT_THAT(names_in(place.run() / "checkpoints"),
              ElementsAre("step_00000004.safetensors", "step_00000005.safetensors"));
  const auto halt = halt_of(place);
  EXPECT_EQ(halt["anomaly"], name);
  EXPECT_EQ(halt["step"], 6);
  if (name == "nan_loss") {
    EXPECT_EQ(halt["reason"], "loss is NaN") << "as the word beside it";
  }
  EXPECT_EQ(halt["run"], nlohmann::json::parse(content(place.run() / "run.json"))["run_id"]);
  EXPECT_FALSE(halt["parameter"].get<std::string>().empty());
  EXPECT_EQ(records(place.run(), "anomaly").size(), 1U);

  const Outcome refused = place.train({"--resume"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr(".HALT stopped this run: " + name + " in step 6"), HasSubstr("remove the file")));
  fs::remove(place.run() / ".HALT");
  const Outcome resumed = place.train({"--resume"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.last_line(), expected.last_line());
}

TEST(NsaTrainGuards, ANanGradientStopsBeforeTheUpdate) { expect_anomaly_stop("nan-gradient", "nan_gradient"); }
TEST(NsaTrainGuards, ANanLossStopsBeforeTheUpdate) { expect_anomaly_stop("nan-loss", "nan_loss"); }

TEST(NsaTrainGuards, TheCulpritIsNamedAndTheRecordGoesWithTheRun) {
  const Place place;
  ASSERT_EQ(place.train({}, {.plant = "nan-gradient@1"}).code, 1);
  EXPECT_EQ(halt_of(place)["parameter"], "layers.0.norm_mlp.weight");
  EXPECT_THAT(names_in(place.run() / "checkpoints"),
              ElementsAre("step_00000000.safetensors"));  // before the first step
  const Outcome forced = place.train({"--steps", "2", "--force"});
  EXPECT_EQ(forced.code, 0) << forced.err;
  EXPECT_FALSE(fs::exists(place.run() / ".HALT"));
}

// The run goes on with the reference's output, but not in silence.
TEST(NsaTrainGuards, AStrictFallbackIsToldWithFunctionShapeAndPlace) {
  const Place place, without;
  const RunOptions strict = {.plant = "nan-window@3", .environment = {{"NSA_STRICT_ASSERTS", "1"}}};
  const Outcome outcome = place.train({"--steps", "3"}, strict);
  EXPECT_EQ(outcome.code, 12) << outcome.err;
  EXPECT_THAT(outcome.last_line(), StartsWith("final: step=3 "));
  EXPECT_THAT(outcome.err, HasSubstr("1 of this run's values of attend_window were not finite"));
  EXPECT_EQ(place.train({"--steps", "3", "--resume"}).code, 12) << "also when it is asked again";
  EXPECT_THAT(outcome.err, HasSubstr("step 2: attend_window gave nan at [0, 3, 1, 2] of its output [2, 32, 4, 8]; the "
                                     "reference's was taken instead (NSA_STRICT_ASSERTS)"));
  const auto told = records(place.run(), "strict_fallback");
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0]["op"], "attend_window");
  const auto& record = told[0]["strict_fallbacks"]["attend_window"];
  EXPECT_EQ(record["replaced"], 1);
  EXPECT_EQ(record["shape"], nlohmann::json({2, 32, 4, 8}));
  EXPECT_EQ(record["index"], nlohmann::json({0, 3, 1, 2}));

  EXPECT_EQ(without.train({"--steps", "3"}, {.plant = "nan-window@3"}).code, 1) << "without the flag it is a NaN loss";
}

TEST(NsaTrainGuards, AnOperatorsHaltStopsCleanly) {
  const Place place;
  const std::vector<std::string> arguments = {"--steps", "100000", "--save-every", "0", "--set", "train.eval_every=0"};
  Child child(place.options(arguments), place.file("child"));
  ASSERT_TRUE(child.says("step 3/"));
  std::ofstream(place.run() / ".HALT") << "lr too high\n";
  const Outcome outcome = child.wait();
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("stops this run: lr too high"));
  EXPECT_THAT(outcome.last_line(), HasSubstr("reason=halt_file"));
  EXPECT_EQ(names_in(place.run() / "checkpoints").size(), 1U);
  auto again = arguments;
  again.push_back("--resume");
  const Outcome refused = place.train(again);
  EXPECT_EQ(refused.code, 5);
  EXPECT_THAT(refused.err, HasSubstr("remove the file to go on"));
  EXPECT_TRUE(fs::exists(place.run() / ".HALT"));
}

// Whoever wrote it, and when: a run neither begins nor goes on, and the file stays as it was.
TEST(NsaTrainGuards, AnyHaltFileStopsARun) {
  const Place place;
  const auto refused = [&](const std::vector<std::string>& more, const std::string& text, const std::string& words) {
    std::ofstream(place.run() / ".HALT") << text;
    auto arguments = more;
    arguments.insert(arguments.end(), {"--steps", "4"});
    const Outcome outcome = place.train(arguments);
    EXPECT_EQ(outcome.code, 5) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(words), HasSubstr("remove the file to go on")));
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(content(place.run() / ".HALT"), text);
  };
  const std::string other = R"({"run": "20200101T000000Z-0000", "anomaly": "nan_loss", "step": 3})";
  fs::create_directories(place.run());
  refused({}, "nan_loss", "stops this run: nan_loss");  // it was there before the run
  EXPECT_FALSE(fs::exists(place.run() / "run.json"));
  fs::remove(place.run() / ".HALT");
  ASSERT_EQ(place.train({"--steps", "2"}).code, 0);
  const std::string metrics = content(place.run() / "metrics.csv");
  refused({"--resume"}, other, "stops this run: nan_loss in step 3, of run 20200101T000000Z-0000");
  refused({"--force"}, "enough", "stops this run: enough");
  EXPECT_EQ(content(place.run() / "metrics.csv"), metrics);  // nothing was removed before it was refused
}

// Far too high a rate, and no clipping.
TEST(NsaTrainGuards, ARunThatDivergesIsHalted) {
  const Place place;
  const std::vector<std::string> arguments = {"--set",        "train.lr=1",
                                              "--set",        "train.grad_clip=1e6",
                                              "--set",        "train.warmup_steps=0",
                                              "--set",        "train.keep_checkpoints=1",
                                              "--save-every", "4",
                                              "--set",        "train.eval_every=0"};
  auto long_run = arguments;
  long_run.insert(long_run.end(), {"--steps", "100"});
  const Outcome outcome = place.train(long_run);
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the run has diverged after step"));
  EXPECT_THAT(outcome.last_line(), HasSubstr("reason=diverged"));
  const auto halt = halt_of(place);
  EXPECT_EQ(halt["anomaly"], "diverged");
  EXPECT_GT(halt["loss"], 6.5);
  EXPECT_GT(halt["lr"], 0);
  EXPECT_EQ(halt["divergence"]["steps_above"], 12);
  EXPECT_LT(halt["divergence"]["since_step"], halt["step"]);
  EXPECT_THAT(halt["what_to_do"].get<std::string>(), HasSubstr("train.stop_on_divergence"));
  EXPECT_EQ(records(place.run(), "anomaly").size(), 1U);
  long_run.emplace_back("--resume");
  EXPECT_EQ(place.train(long_run).code, 1);
  fs::remove(place.run() / ".HALT");
  long_run.insert(long_run.end(), {"--set", "train.stop_on_divergence=false"});
  const Outcome resumed = place.train(long_run);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.last_line(), StartsWith("final: step=100 "));
}

TEST(NsaTrainGuards, AHangIsToldAndEnded) {
  const Place place;
  const Outcome outcome = place.train({"--set", "train.hang_timeout_s=4"}, {.plant = "hang@11"});
  EXPECT_EQ(outcome.code, 6) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("HUNG in step 6, phase backward"));
  const auto records_of_hang = records(place.run(), "hung");
  ASSERT_EQ(records_of_hang.size(), 1U);
  EXPECT_EQ(records_of_hang[0]["step"], 5);
  EXPECT_GE(records_of_hang[0]["silent_s"], 4.0);
  const std::string stacks = content(place.run() / records_of_hang[0]["stacks"].get<std::string>());
  EXPECT_THAT(stacks, AllOf(HasSubstr("thread "), HasSubstr("pause"), HasSubstr("nsa::train::Session::run")));
  EXPECT_THAT(names_in(place.run() / "checkpoints"), ElementsAre("step_00000004.safetensors"));
  EXPECT_EQ(place.train({"--resume"}).code, 0);
}

TEST(NsaTrainGuards, ACrashLeavesItsStacksAndTheRunGoesOn) {
  const Place place;
  const Outcome outcome = place.train({}, {.plant = "crash@11"});
  EXPECT_EQ(outcome.code, 128 + SIGSEGV) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("CRASHED; stacks in "));
  EXPECT_THAT(content(place.run() / "stacks_crash.txt"),
              AllOf(HasSubstr("nsa5train7Session3run"), HasSubstr("end of stacks")));
  EXPECT_EQ(place.train({"--resume"}).code, 0);
}

TEST(NsaTrainGuards, ASlowStepIsToldAndGoesOn) {
  const Place place;
  const Outcome outcome = place.train({"--set", "train.hang_timeout_s=60"}, {.plant = "slow@17"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("SLOW in step 9"));
  ASSERT_EQ(records(place.run(), "slow").size(), 1U);
  EXPECT_TRUE(records(place.run(), "hung").empty());
}

// A connection that ends may tell it twice.
TEST(NsaTrainGuards, ASecondHangupIsNoImpatience) {
  const Place place;
  Child child(place.options({"--steps", "100000", "--save-every", "0", "--set", "train.eval_every=0"}),
              place.file("child"));
  ASSERT_TRUE(child.says("step 3/"));
  child.send(SIGHUP);
  child.send(SIGHUP);
  child.send(SIGXCPU);
  EXPECT_EQ(child.wait().code, 143);
  EXPECT_EQ(names_in(place.run() / "checkpoints").size(), 1U);
}

TEST(NsaTrainGuards, NohupStaysDeafToAHangup) {
  const Place place;
  const auto before = ::signal(SIGHUP, SIG_IGN);
  Child child(place.options({}), place.file("child"));
  ::signal(SIGHUP, before);
  ASSERT_TRUE(child.says("step 3/"));
  child.send(SIGHUP);
  EXPECT_EQ(child.wait().code, 0);
}

TEST(NsaTrainGuards, ASecondSignalEndsAtOnce) {
  const Place place;
  Child child(place.options({"--set", "train.hang_timeout_s=0"}, {.plant = "spin@9"}), place.file("child"));
  ASSERT_TRUE(child.says("step 4/"));
  child.send(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  child.send(SIGTERM);
  EXPECT_EQ(child.wait().code, 143);
  EXPECT_THAT(names_in(place.run() / "checkpoints"), ElementsAre("step_00000004.safetensors"));
}

// A few kills out of many; each may fall into a save.
TEST(NsaTrainGuards, KilledAtAnyMomentItEndsAtTheSameBits) {
  const std::vector<std::string> arguments = {"--steps", "60", "--save-every", "1", "--resume"};
  const Place whole, place;
  const Outcome expected = whole.train(arguments);
  ASSERT_EQ(expected.code, 0) << expected.err;
  std::mt19937 random(5);
  for (int kill = 0; kill < 4; ++kill) {
    Child child(place.options(arguments), place.file("child"));
    (void)child.says("run 20");
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
    child.send(SIGKILL);
    (void)child.wait();
  }
  const Outcome resumed = place.train(arguments);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.last_line(), expected.last_line());
  EXPECT_EQ(lines(place.run() / "metrics.csv").size(), 61U);
}

}  // namespace
