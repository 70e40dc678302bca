// The small parts of a run: activity, heartbeat, progress, gates, records, the step log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <thread>

#include "nsa/tests/model_fixtures.hpp"
#include "nsa/tests/scratch.hpp"
#include "nsa/train/run/gate_watch.hpp"
#include "nsa/train/run/heartbeat.hpp"
#include "nsa/train/run/progress.hpp"
#include "nsa/train/run/records.hpp"
#include "nsa/train/run/step_log.hpp"
#include "nsa/train/trainer.hpp"

namespace {

namespace fs = std::filesystem;
using namespace nsa::train;
using nsa::LanguageModel;
using nsa::TrainConfig;
using testing::AllOf;
using testing::HasSubstr;

TEST(Activity, CountsProgressAndKnowsTheMedian) {
  Activity activity;
  activity.phase("fetch");
  const auto before = activity.look();
  EXPECT_EQ(before.phase, "fetch");
  EXPECT_EQ(before.step_s, 0.0);
  activity.pulse();
  EXPECT_GT(activity.look().progress, before.progress);
  activity.step_made(100, 0);  // where a run goes on
  for (const double seconds : {1.0, 9.0, 2.0, 3.0}) activity.step_made(101, seconds);
  EXPECT_EQ(activity.look().median_s, 0.0);
  activity.step_made(105, 4.0);
  EXPECT_EQ(activity.look().median_s, 3.0);
  EXPECT_EQ(activity.look().steps, 105);
  activity.step_begins();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GT(activity.look().step_s, 0.004);
}

TEST(Heartbeat, EveryRecordIsOneLineOfJson) {
  Activity activity;
  activity.phase("a \"phase\"\n");
  const nsa::fixtures::Scratch folder;
  const fs::path file = folder / "heartbeat.jsonl";
  Heartbeat heartbeat(file, {"run-1", at::kCPU, activity});
  heartbeat.write("progress", {{"loss", json_number(std::nan(""))}, {"lr", 0.25}});
  heartbeat.write("beat");
  const std::string text = read_text(file);
  const auto first = nlohmann::json::parse(text.substr(0, text.find('\n')));
  EXPECT_EQ(first["event"], "progress");
  EXPECT_EQ(first["run"], "run-1");
  EXPECT_EQ(first["loss"], "NaN");
  EXPECT_EQ(first["lr"], 0.25);
  EXPECT_GT(first["rss_bytes"], 1 << 20);
  EXPECT_GT(first["ts"], 1.7e9);
  EXPECT_EQ(nlohmann::json::parse(text.substr(text.find('\n')))["event"], "beat");
  EXPECT_EQ(json_number(-INFINITY), "-Infinity");
}

TEST(Progress, TimesAreReadable) {
  EXPECT_EQ(remaining_time(7), "0:07");
  EXPECT_EQ(remaining_time(187.4), "3:07");
  EXPECT_EQ(remaining_time(7387), "2:03:07");
  EXPECT_EQ(remaining_time(4 * 86400 + 7380), "4d 02:03");
}

TEST(GateWatch, FindsACollapsedLayerAndLooksAtTrainingAlone) {
  auto model = nsa::fixtures::make_model(nsa::fixtures::tiny());
  const at::Tensor tokens = nsa::fixtures::bytes({2, 33}, 1);
  const GateWatch gates(model);
  EXPECT_EQ(gates.figures(false), nlohmann::json::object());
  (void)model->loss(tokens);
  const auto even = gates.figures(false);
  EXPECT_EQ(gates.figures(true), nlohmann::json::object());  // nothing was captured
  EXPECT_NEAR(even["gate_entropy_mean"], std::log(3), 0.02);
  EXPECT_LT(even["gate_max_gate"], 0.5);
  EXPECT_EQ(even["gate_collapsed_share"], 0.0);
  EXPECT_EQ(even["gate_entropy_per_layer"].size(), 2U);
  EXPECT_NEAR(even["gate_branch_shares"][0].get<double>() + even["gate_branch_shares"][1].get<double>() +
                  even["gate_branch_shares"][2].get<double>(),
              1.0, 1e-5);
  {
    const torch::NoGradGuard no_grad;
    model->named_parameters()["layers.1.attention.gate.fc2.bias"][2] = 50.0;  // only the window is left
  }
  {
    const torch::NoGradGuard validation;
    (void)model->loss(tokens);
    EXPECT_EQ(gates.figures(false), even);
  }
  (void)model->loss(tokens);
  const auto collapsed = gates.figures(false);
  EXPECT_NEAR(collapsed["gate_collapsed_share"], 0.5, 1e-6);  // one layer of two
  EXPECT_LT(collapsed["gate_entropy_per_layer"]["layers.1"], 1e-3);
  EXPECT_GT(collapsed["gate_entropy_per_layer"]["layers.0"], 1.0);
}

// A captured step calls nobody: what the watch was given at the capture has each replay's values.
TEST(GateWatch, OfAReplayAreItsOwn) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device: there are no graphs without one";
  const auto model_of = [] {
    auto model = nsa::fixtures::make_model(nsa::fixtures::tiny());
    model->to(at::kCUDA);
    return model;
  };
  auto captured = model_of(), ordinary = model_of();
  TrainConfig config;
  config.precision = nsa::Precision::fp32;
  config.seq_len = 33;
  config.batch_size = 2;
  config.lr = 3e-3;
  const auto train = [&](LanguageModel& model, nsa::CudaGraph use) {
    config.cuda_graph = use;
    return Trainer(model, config, [batch = std::uint64_t{0}]() mutable {
      return nsa::fixtures::bytes({2, 34}, ++batch);
    });
  };
  Trainer replaying = train(captured, nsa::CudaGraph::on), plain = train(ordinary, nsa::CudaGraph::off);
  const GateWatch of_captured(captured), of_ordinary(ordinary);
  nlohmann::json before;
  for (std::int64_t i = 0; i < GraphStep::kWarmUp + 3; ++i) {
    const StepReport made = replaying.step();
    (void)plain.step();
    EXPECT_EQ(made.replayed, i >= GraphStep::kWarmUp);
    const auto figures = of_captured.figures(made.replayed), expected = of_ordinary.figures(false);
    EXPECT_EQ(figures["gate_entropy_per_layer"].size(), 2U);
    EXPECT_NEAR(figures["gate_entropy_mean"].get<double>(), expected["gate_entropy_mean"].get<double>(), 1e-4);
    EXPECT_NE(figures, before);
    before = figures;
  }
}

TEST(Records, SayWhatChangedSinceTheLastStart) {
  const auto record = [](const nsa::Environment& environment) {
    return start_record({"--config", "x"}, at::kCPU, nsa::resolve(environment), environment);
  };
  const auto before = record({}), now = record({{"NSA_FORCE_SEL_MASK", "1"}, {"NSA_NO_SUCH", "1"}});
  EXPECT_TRUE(changes_since(before, record({})).empty());
  EXPECT_THAT(changes_since(before, now),
              testing::Contains(HasSubstr("flag sel_mask was \"false\" and is \"true\" now")));
  EXPECT_EQ(now["flags"]["sel_mask"]["origin"], "NSA_FORCE_SEL_MASK=1");
  EXPECT_EQ(now["unknown_flags"][0]["name"], "NSA_NO_SUCH");
  auto other = before;
  other["build"]["id"] = "0000";
  EXPECT_THAT(changes_since(other, before), testing::ElementsAre(HasSubstr("the build was")));
}

TEST(Records, DtypesAreCounted) {
  auto model = nsa::fixtures::make_model(nsa::fixtures::tiny());
  nsa::TrainConfig config;
  model->to(at::kBFloat16);
  const std::string report = dtype_report(*model, config);
  EXPECT_THAT(report, AllOf(HasSubstr("BFloat16 "), HasSubstr(" 100.00 %"),
                            HasSubstr("PARAM head.weight [256,32] BFloat16 optimizer Float, with a Float copy")));
  config.master_weights = false;
  EXPECT_THAT(dtype_report(*model, config), HasSubstr("PARAM head.weight [256,32] BFloat16 optimizer BFloat16\n"));
}

TEST(StepLog, ARowIsOverTheStepsSinceTheLast) {
  const nsa::fixtures::Scratch folder;
  StepLog log(folder.path(), 0, true, {});
  const auto step = [&](std::int64_t number, double seconds, double fetch_s) {
    StepReport report;
    report.step = number;
    report.loss = 3.5;
    report.tokens = 100;
    report.seconds = seconds;
    report.fetch_seconds = fetch_s;
    log.step(report);
  };
  step(0, 1.0, 0.1);
  EXPECT_DOUBLE_EQ(log.row({}).tok_per_s, 100.0);
  for (int i = 1; i <= 20; ++i) step(i, 2.0, i == 7 ? 1.0 : 0.001);
  const Window window = log.row({});
  EXPECT_DOUBLE_EQ(window.tok_per_s, 50.0);
  EXPECT_DOUBLE_EQ(window.step_s, 2.0);
  EXPECT_DOUBLE_EQ(window.fetch_p50_ms, 1.0);
  EXPECT_DOUBLE_EQ(window.fetch_p95_ms, 1.0);
  step(21, 1, 0.5);
  EXPECT_DOUBLE_EQ(log.row({}).fetch_p95_ms, 500.0);
  step(22, 1, 0.5);
  log.validation(23, {.loss = std::log(2.0), .tokens = 10, .batches = 1}, 0.5);
  (void)log.row({.tokens = 4200, .seconds = 1.25});
  step(23, 1, 0.5);
  (void)log.row({.tokens = 4300, .seconds = 2.25});
  log.sync();
  const std::string metrics = read_text(folder / "metrics.csv");
  EXPECT_EQ(metrics.substr(0, metrics.find('\n')),
            "step,loss,lr,grad_norm,tok_per_s,step_s,fetch_p50_ms,fetch_p95_ms,tokens,seconds,validation_loss");
  EXPECT_NE(metrics.find("\n23,3.5,0,0,100,1,500,500,4200,1.25,0.6931471805599453\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\n24,3.5,0,0,100,1,500,500,4300,2.25,\n"), std::string::npos) << metrics;
  EXPECT_EQ(read_text(folder / "validation.csv"),
            "step,loss,perplexity,bits_per_token,tokens,seconds\n23,0.6931471805599453,2,1,10,0.5\n");
}

TEST(StepLog, FiguresThatAreGoneAreTold) {
  const nsa::fixtures::Scratch folder;
  const fs::path metrics = folder / "metrics.csv";
  std::string told;
  const auto open = [&](std::int64_t last_step) {
    told.clear();
    (void)StepLog(folder.path(), last_step, true, [&](const std::string& text) { told += text + "\n"; });
    return told;
  };
  const std::string words = metrics.string() + " has no rows, though 20 steps are made";
  EXPECT_EQ(open(0), "") << "a new run";
  EXPECT_THAT(open(20), HasSubstr(words)) << "the header alone";
  for (const std::uintmax_t bytes : {0, 7}) {
    fs::resize_file(metrics, bytes);
    EXPECT_THAT(open(20), HasSubstr(words)) << bytes;
  }
  fs::remove(metrics);
  EXPECT_THAT(open(20), HasSubstr(words));
  std::ofstream(metrics, std::ios::app) << "1,5,1,1,1,1,1,1,1,1,\n";
  EXPECT_EQ(open(20), "");
  std::ofstream(metrics, std::ios::app) << "damaged\n";
  EXPECT_THAT(open(20), testing::Not(HasSubstr("has no rows"))) << "that is told already";
}

}  // namespace
