// Each verdict over a run: silent on a healthy one, and loud on one in which its defect is planted.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "nsa/train/text.hpp"
#include "suites/codes.hpp"
#include "suites/training/accumulation.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/pace.hpp"
#include "suites/training/tests/support.hpp"
#include "suites/training/validation.hpp"
#include "suites/training/variants.hpp"
#include "suites/training/verdicts.hpp"

namespace suites::training_cases {
namespace {

using namespace training_tests;  // NOLINT
using testing::HasSubstr;
using Seen = Run;  // inside of a test, Run is a function of googletest

nsa::train::StepReport report(std::int64_t step, double loss, double seconds = 0.02) {
  nsa::train::StepReport r;
  r.step = step;
  r.loss = loss;
  r.grad_norm = 1;
  r.seconds = seconds;
  r.tokens = 96;  // of quick_plan(): two rows of 48
  return r;
}

// Reads `steps` batches of the plan's data.
at::Tensor tokens_of(const RunPlan& plan, std::int64_t steps, nsa::train::Split split = nsa::train::Split::train) {
  const auto stream = open_data(plan, split);
  std::vector<at::Tensor> batches;
  for (std::int64_t i = 0; i < steps; ++i) batches.push_back(stream->next().tokens.to(at::kInt));
  return at::stack(batches);
}

class Verdicts : public testing::Test {
 protected:
  harness::Settings with = settings();
  RecordingContext context{with};
  Seen run;
};

// -- time and memory

void with_times(Run& run, double growth_per_step, double machine_growth_per_step) {
  for (std::int64_t i = 0; i < 100; ++i) {
    const double jitter = 0.003 * std::fmod(static_cast<double>(i * i % 17) * 0.37, 1.0), t = static_cast<double>(i);
    run.steps.push_back(report(i, 3, 0.02 * (1 + growth_per_step * t) + jitter));
    run.yardstick_s.push_back(0.001 * (1 + machine_growth_per_step * t) + jitter / 50);
  }
}

TEST_F(Verdicts, ASteadyPaceIsSilent) {
  with_times(run, 0, 0);
  run.steps[40].seconds = 0.5;  // once, below the limit of a stall
  judge_pace(run, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_GT(context.checks, 0);
}

TEST_F(Verdicts, GrowingStepsAreSlow) {
  with_times(run, 0.01, 0);  // twice as long at the end
  judge_pace(run, context);
  ASSERT_TRUE(found(context, codes::kStepTimeGrows)) << listed(context);
}

TEST_F(Verdicts, AMachineThatBecomesSlowIsNotTheTraining) {
  with_times(run, 0.01, 0.01);
  judge_pace(run, context);
  EXPECT_FALSE(found(context, codes::kStepTimeGrows)) << listed(context);
  EXPECT_TRUE(found(context, codes::kTimingUnusable)) << listed(context);
}

TEST_F(Verdicts, AStallIsToldAsSlowAndNotAsHung) {
  with_times(run, 0, 0);
  run.steps[60].seconds = 3;
  judge_pace(run, context);
  ASSERT_TRUE(found(context, codes::kStepStalls)) << listed(context);
  EXPECT_THAT(finding(context, codes::kStepStalls).message, HasSubstr("not hung"));
}

TEST_F(Verdicts, TimesThatAreNoNumbersPassNothing) {
  with_times(run, 0, 0);
  for (auto& step : run.steps) step.seconds = NAN;
  judge_pace(run, context);
  EXPECT_TRUE(found(context, codes::kStepTimeGrows)) << listed(context);
}

TEST_F(Verdicts, ASleepThatGrowsWithEveryStepIsFoundInARealRun) {
  RunPlan plan = quick_plan(context);
  plan.config.train.steps = 40;
  Instance instance = make_model(Subject(std::make_shared<Seams>()), plan);
  int passes = 0;
  instance.model->head->weight.register_hook([&passes](const at::Tensor& gradient) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * passes++));
    return gradient;
  });
  run = train(instance.model, plan, context);
  std::fill(run.yardstick_s.begin(), run.yardstick_s.end(), 1e-3);  // whatever else this machine does meanwhile
  judge_pace(run, context);
  EXPECT_TRUE(found(context, codes::kStepTimeGrows)) << listed(context);
}

Run run_with_leak(const std::function<void()>& leak, RecordingContext& context) {
  RunPlan plan = quick_plan(context);
  plan.config.train.steps = 45;
  Instance instance = make_model(Subject(std::make_shared<Seams>()), plan);
  instance.model->head->weight.register_hook([&leak](const at::Tensor& gradient) {
    leak();
    return gradient;
  });
  return train(instance.model, plan, context);
}

TEST_F(Verdicts, AHealthyRunKeepsItsSize) {
  run = run_with_leak([] {}, context);
  judge_memory(run, context);
  EXPECT_FALSE(found(context, codes::kHostMemoryGrows)) << listed(context) << context.facts["host_bytes"];
  EXPECT_GT(context.checks, 0);
}

TEST_F(Verdicts, TensorsThatAreKeptAreFound) {
  std::vector<at::Tensor> kept;
  run = run_with_leak([&] { kept.push_back(at::ones({1024})); }, context);
  judge_memory(run, context);
  EXPECT_TRUE(found(context, codes::kHostMemoryGrows)) << context.facts["host_bytes"];
}

TEST_F(Verdicts, AListThatGrowsIsFound) {
  std::vector<std::string> kept;
  run = run_with_leak([&] { kept.emplace_back(3000, 'x'); }, context);
  judge_memory(run, context);
  EXPECT_TRUE(found(context, codes::kHostMemoryGrows)) << context.facts["host_bytes"];
}

// -- schedule

TEST_F(Verdicts, AScheduleOverMicroStepsIsFound) {
  RunPlan plan = quick_plan(context);
  nsa::TrainConfig& train_config = plan.config.train;
  train_config.steps = 6;
  train_config.accumulate_grad_batches = 2;
  nsa::TrainConfig wrong = train_config;
  wrong.steps *= wrong.accumulate_grad_batches;  // the horizon in batches instead of steps
  for (const bool planted : {false, true}) {
    Instance instance = make_model(Subject(std::make_shared<Seams>()), plan);
    nsa::train::Trainer trainer(instance.model, planted ? wrong : train_config, open_data(plan));
    Seen made;
    for (int i = 0; i < 6; ++i) made.steps.push_back(trainer.step());
    RecordingContext one(with);
    check_learning_rate(made, train_config, one);
    EXPECT_EQ(found(one, codes::kLearningRate), planted) << listed(one);
    if (planted) {
      EXPECT_EQ(finding(one, codes::kLearningRate).evidence["as_if"],
                "its length were counted in batches, not in steps");
    }
  }
}

TEST_F(Verdicts, ARateIsToldByTheMistakeThatExplainsIt) {
  nsa::TrainConfig config;
  config.steps = 12;
  config.warmup_steps = 3;
  config.lr_min = config.lr / 10;
  const auto judged = [&](const std::function<double(std::int64_t)>& rate) {
    run.steps.clear();
    for (std::int64_t i = 0; i < config.steps; ++i) {
      run.steps.push_back(report(i, 3));
      run.steps.back().lr = rate(i);
    }
    RecordingContext one(with);
    check_learning_rate(run, config, one);
    return found(one, codes::kLearningRate) ? finding(one, codes::kLearningRate).evidence : harness::Json();
  };
  const auto right = [&](std::int64_t i) { return expected_learning_rate(config, i); };
  EXPECT_TRUE(judged(right).is_null());
  EXPECT_EQ(judged([&](auto i) { return i < 3 ? right(i) : config.lr; })["as_if"],
            "it stayed at its peak after the warm-up");
  EXPECT_EQ(judged([&](auto i) { return right(i + 1); })["as_if"], "every step had the rate of the step after it");
  const harness::Json other = judged([&](auto i) { return i == 7 ? 0.5 * right(i) : right(i); });
  EXPECT_EQ(other["step"], 7);
  EXPECT_FALSE(other.contains("as_if"));
}

TEST_F(Verdicts, AWrongUpdateIsFoundWithItsStep) {
  run.watched = {{"norm.weight"}};
  for (std::int64_t i = 0; i < 5; ++i) {
    run.steps.push_back(report(i, 3));
    run.watched.front().updates.push_back({i, i < 3 ? 0.1 : 7.0, 1e-3});
  }
  check_updates(run, context);
  ASSERT_TRUE(found(context, codes::kWrongUpdate));
  EXPECT_EQ(finding(context, codes::kWrongUpdate).evidence["first_wrong_step"], 3);
}

// -- floors

TEST_F(Verdicts, ALossBelowCountingIsSuspicious) {
  RunPlan plan = quick_plan(context);
  run.tokens = tokens_of(plan, 30);
  for (std::int64_t i = 0; i < 30; ++i) run.steps.push_back(report(i, 5.7 - 0.05 * static_cast<double>(i)));
  check_suspicious_fall(run, plan.config.model, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);

  for (std::int64_t i = 20; i < 30; ++i) run.steps[i].loss = 1.9;  // 2,900 tokens of English cannot teach this
  RecordingContext fast(with);
  check_suspicious_fall(run, plan.config.model, fast);
  ASSERT_TRUE(found(fast, codes::kSuspiciousFall)) << fast.metrics.dump();
}

// A model that learns a leak fast, trained on text for 60 steps.
RecordingContext leak_on_text(const std::shared_ptr<Seams>& seams, const harness::Settings& with) {
  RecordingContext context(with);
  const Subject subject(seams);
  RunPlan plan = quick_plan(context);
  plan.config.model.nsa.w = 2;
  plan.config.train.batch_size = 8;
  plan.config.train.steps = 60;
  plan.config.train.lr = 1e-2;
  Instance instance = make_model(subject, plan);
  const Seen run = train(instance.model, plan, context);
  check_suspicious_fall(run, plan.config.model, context);
  return context;
}

TEST_F(Verdicts, ALeakedTokenMakesTheLossOnTextFallTooFast) {
  const RecordingContext honest = leak_on_text(std::make_shared<Seams>(), with);
  EXPECT_FALSE(found(honest, codes::kSuspiciousFall)) << listed(honest);
  const RecordingContext leaking = leak_on_text(leaking_window(), with);
  EXPECT_TRUE(found(leaking, codes::kSuspiciousFall)) << leaking.metrics.dump() << honest.metrics.dump();
}

TEST_F(Verdicts, TheFloorOfRandomTokens) {
  nsa::ModelConfig model;  // 256 symbols: 5.545
  for (std::int64_t i = 0; i < 20; ++i) run.steps.push_back(report(i, 5.7 - 0.005 * static_cast<double>(i)));
  check_floor(run, 0.6, model, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  run.steps[19].loss = 5.0;  // one step, far below
  check_floor(run, 0.6, model, context);
  EXPECT_EQ(context.findings.size(), 1U) << listed(context);
  for (auto& step : run.steps) step.loss = 5.45;  // all a little below
  RecordingContext all(with);
  check_floor(run, 0.6, model, all);
  EXPECT_TRUE(found(all, codes::kLossBelowFloor)) << listed(all);
}

// -- validation

TEST_F(Verdicts, ValidationThatTrainingReadIsFound) {
  const RunPlan plan = quick_plan(context);
  run.tokens = tokens_of(plan, 50);
  for (std::int64_t i = 0; i < 50; ++i) run.steps.push_back(report(i, 3));
  const Validation apart{5.7, 3.1, tokens_of(plan, 4, nsa::train::Split::validation)};
  check_validation(run, apart, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  const Validation same{5.7, 3.1, run.tokens.narrow(0, 10, 4)};
  check_validation(run, same, context);
  EXPECT_TRUE(found(context, codes::kSplitOverlap)) << listed(context);
}

TEST_F(Verdicts, ValidationThatDoesNotFollowTrainingIsFound) {
  const RunPlan plan = quick_plan(context);
  run.tokens = tokens_of(plan, 20);
  for (std::int64_t i = 0; i < 20; ++i) run.steps.push_back(report(i, 3));
  const at::Tensor tokens = tokens_of(plan, 4, nsa::train::Split::validation);
  for (const auto& [before, after] : {std::pair{5.7, 5.7}, {5.7, 4.0}, {5.7, 2.0}, {5.7, double{NAN}}}) {
    RecordingContext one(with);
    check_validation(run, {before, after, tokens}, one);
    EXPECT_TRUE(found(one, codes::kValidationLoss)) << before << " -> " << after;
  }
}

TEST_F(Verdicts, EvaluationIsTheProductsAndChangesNothing) {
  const RunPlan plan = quick_plan(context);
  Instance instance = make_model(Subject(std::make_shared<Seams>()), plan);
  at::Tensor tokens;
  const double loss = validation_loss(instance.model, plan, tokens, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_NEAR(loss, 5.7, 0.3);
  EXPECT_EQ(tokens.sizes(), at::IntArrayRef({4, 2, 49}));
  // A model that answers differently in eval mode: what is evaluated is not what is trained.
  auto seams = std::make_shared<Seams>();
  const nsa::LanguageModelImpl* model = nullptr;
  seams->ops.push_back([&model](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [&model, inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended out = inner(args);
      if (!model->is_training()) out.o = out.o * 30;
      return out;
    });
    return ops;
  });
  Instance fickle = make_model(Subject(seams), plan);
  model = fickle.model.get();
  (void)validation_loss(fickle.model, plan, tokens, context);
  EXPECT_TRUE(found(context, codes::kValidationLoss)) << listed(context);
}

TEST(ShareSeen, CountsStretches) {
  const at::Tensor training = at::arange(200, at::kInt).view({1, 200});
  EXPECT_EQ(share_seen(training, training), 1);
  EXPECT_EQ(share_seen(training, training + 1000), 0);
  // 100 tokens hold 53 stretches of 48; of those that begin at 150 to 202 only 150, 151 and 152 end before 200.
  EXPECT_NEAR(share_seen(training, at::arange(150, 250, at::kInt).view({1, 100})), 3.0 / 53, 1e-12);
  EXPECT_TRUE(std::isnan(share_seen(training, at::zeros({1, 10}, at::kInt))));
}

// -- accumulation

class Accumulation : public Verdicts {
 protected:
  AccumulatedSteps steps;
  nsa::TrainConfig config;
  void SetUp() override {
    config.steps = 4;
    config.precision = nsa::Precision::fp32;
    for (std::int64_t i = 0; i < 4; ++i) {
      nsa::train::StepReport r = report(i, 5 - 0.1 * static_cast<double>(i));
      r.lr = expected_learning_rate(config, i);
      steps.at_once.push_back(r);
      r.loss *= 1 + 1e-7;
      steps.in_parts.push_back(r);
    }
  }
};

TEST_F(Accumulation, EqualStepsAreSilent) {
  judge_accumulation(steps, config, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
}
TEST_F(Accumulation, ALossDividedByThePartsIsFound) {
  for (auto& r : steps.in_parts) r.loss /= 4;
  judge_accumulation(steps, config, context);
  EXPECT_TRUE(found(context, codes::kAccumulation)) << listed(context);
}
TEST_F(Accumulation, GradientsThatAreSummedAreFound) {
  for (auto& r : steps.in_parts) r.grad_norm *= 4;
  judge_accumulation(steps, config, context);
  EXPECT_TRUE(found(context, codes::kAccumulation)) << listed(context);
}
TEST_F(Accumulation, AScheduleInBatchesIsFound) {
  for (auto& r : steps.in_parts) r.lr = expected_learning_rate(config, 4 * r.step);
  judge_accumulation(steps, config, context);
  EXPECT_TRUE(found(context, codes::kLearningRate)) << listed(context);
}
TEST_F(Accumulation, AStopIsReportedAsWhatItIs) {
  steps.in_parts.back().stop = nsa::train::Stop::nonfinite_loss;
  steps.in_parts.back().loss = NAN;
  judge_accumulation(steps, config, context);
  EXPECT_TRUE(found(context, codes::kNonFiniteLoss)) << listed(context);
  EXPECT_FALSE(found(context, codes::kAccumulation)) << listed(context);
}

// -- variants

std::vector<VariantResult> results(std::initializer_list<bool> finite) {
  std::vector<VariantResult> all;
  const char* names[] = {"as configured", "synthetic data", "fp32"};
  const char* cleared[] = {"", "the data", "the precision"};
  std::size_t i = 0;
  for (const bool ok : finite) {
    nsa::train::StepReport r = report(0, ok ? 5.7 : NAN);
    if (!ok) r.stop = nsa::train::Stop::nonfinite_loss;
    all.push_back({{names[i], cleared[i], {}}, {r}});
    ++i;
  }
  return all;
}

TEST_F(Verdicts, VariantsThatAllWorkAreSilent) {
  judge_variants(results({true, true, true}), context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
}
TEST_F(Verdicts, AFailureThatStaysRulesCausesOut) {
  judge_variants(results({false, false, false}), context);
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0].code, codes::kNonFiniteLoss);
  EXPECT_THAT(context.findings[0].message, HasSubstr("none of: the data, the precision"));
}
TEST_F(Verdicts, AChangeThatCuresIsNamed) {
  judge_variants(results({false, false, true}), context);
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_THAT(context.findings[0].message, HasSubstr("finite with: fp32; not the cause: the data"));
}
TEST_F(Verdicts, AChangeThatFailsByItselfIsNamed) {
  judge_variants(results({true, true, false}), context);
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_THAT(context.findings[0].message, HasSubstr("not with fp32"));
}

}  // namespace
}  // namespace suites::training_cases
