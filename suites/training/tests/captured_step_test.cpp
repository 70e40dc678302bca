// A captured step that is another one than it was is found. Without a GPU nothing is captured: the same arithmetic is
// made one operation after another, and what is planted is planted in the model that would be captured.
#include "suites/training/captured_step.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "nsa/train/graph_step.hpp"
#include "suites/codes.hpp"
#include "suites/training/tests/support.hpp"

namespace {

using namespace suites;
using namespace suites::training_cases;
using testing::HasSubstr;
using training_tests::RecordingContext;

// A context refers to its settings.
const harness::Settings& in_use() {
  static const harness::Settings settings = training_tests::settings();
  return settings;
}

CapturedTrial quick_trial(const RecordingContext& context) {
  CapturedTrial trial{.plan = training_tests::quick_plan(context)};
  trial.plan.config.model.n_layers = 2;
  trial.plan.config.train.steps = 4;
  trial.plan.config.train.warmup_steps = 4;
  trial.plan.config.train.stop_on_divergence = false;
  return trial;
}

// What is found when `change` is made to the model of the captured run alone.
RecordingContext steps_with(std::function<void(nsa::LanguageModelImpl&)> change) {
  RecordingContext context(in_use(), "training/captured_step");
  CapturedTrial trial = quick_trial(context);
  trial.disturb = [change](nsa::LanguageModelImpl& model, nsa::CudaGraph use) {
    if (use != nsa::CudaGraph::off) change(model);
  };
  judge_captured_steps(Subject(std::make_shared<Seams>()), trial, context);
  return context;
}

std::function<void(nsa::LanguageModelImpl&)> on_gradient(std::string parameter,
                                                         std::function<at::Tensor(const at::Tensor&)> change) {
  return [=](nsa::LanguageModelImpl& model) { model.named_parameters()[parameter].register_hook(change); };
}

TEST(CapturedStep, HealthyStepsAndStopsAreSilent) {
  RecordingContext context(in_use(), "training/captured_step");
  const CapturedTrial trial = quick_trial(context);
  const Subject subject(std::make_shared<Seams>());
  judge_captured_steps(subject, trial, context);
  judge_captured_stops(subject, trial, context);
  EXPECT_TRUE(context.findings.empty()) << training_tests::listed(context);
}

TEST(CapturedStep, AGradientThatIsOffIsFoundAndNamed) {
  const auto context =
      steps_with(on_gradient("layers.1.attention.k_cmp.weight", [](const at::Tensor& g) { return g * 1.02; }));
  ASSERT_TRUE(training_tests::found(context, codes::kCapturedStep)) << training_tests::listed(context);
  EXPECT_THAT(training_tests::listed(context), HasSubstr("layers.1.attention.k_cmp.weight"));
}

TEST(CapturedStep, AWeightThatStoodOtherwiseIsFoundInTheFirstStep) {
  const auto context = steps_with([](nsa::LanguageModelImpl& model) {
    const at::NoGradGuard no_grad;
    model.norm->weight.mul_(1.001);
  });
  EXPECT_THAT(training_tests::finding(context, codes::kCapturedStep).message, HasSubstr("step 0"));
}

TEST(CapturedStep, ANanThatOnlyTheCaptureHasIsFound) {
  const auto context = steps_with(
      on_gradient("norm.weight", [](const at::Tensor& g) { return g * std::numeric_limits<double>::quiet_NaN(); }));
  EXPECT_TRUE(training_tests::found(context, codes::kNonFiniteGradientStep)) << training_tests::listed(context);
  EXPECT_TRUE(training_tests::found(context, codes::kCapturedStep));
}

// What stops a step that nobody spoilt, and that is not finite, is a guard that does its work.
TEST(CapturedStep, ANanThatOnlyTheCaptureHasAccusesNoGuard) {
  RecordingContext context(in_use(), "training/captured_step");
  CapturedTrial trial = quick_trial(context);
  trial.disturb = [](nsa::LanguageModelImpl& model, nsa::CudaGraph use) {
    if (use == nsa::CudaGraph::off) return;
    const at::NoGradGuard no_grad;
    model.head->weight.flatten()[0] = std::numeric_limits<double>::quiet_NaN();
  };
  judge_captured_stops(Subject(std::make_shared<Seams>()), trial, context);
  EXPECT_FALSE(training_tests::found(context, codes::kGuardMissed)) << training_tests::listed(context);
  EXPECT_EQ(training_tests::finding(context, codes::kNonFiniteLoss).evidence["captured"], "alone");
}

// What came of a guard that looks at the loss alone: the step behind the stopped one has nothing wrong of its own.
TEST(CapturedStep, WeightsThatAStoppedStepChangesAreTheFinding) {
  RecordingContext context(in_use(), "training/captured_step");
  CapturedTrial trial = quick_trial(context);
  trial.disturb = [](nsa::LanguageModelImpl& model, nsa::CudaGraph use) {
    if (use == nsa::CudaGraph::off) return;
    const at::Tensor norm = model.norm->weight;
    norm.register_hook([norm, passes = std::make_shared<std::int64_t>(0)](const at::Tensor& g) {
      const at::NoGradGuard no_grad;
      if ((*passes)++ == nsa::train::GraphStep::kWarmUp + 1) norm.fill_(std::numeric_limits<double>::quiet_NaN());
      return g;
    });
  };
  judge_captured_stops(Subject(std::make_shared<Seams>()), trial, context);
  EXPECT_TRUE(training_tests::found(context, codes::kGuardMissed)) << training_tests::listed(context);
  EXPECT_EQ(context.findings.size(), 1U) << training_tests::listed(context);
}

// A loss that is not finite anyway is its own finding, and no captured step is blamed.
TEST(CapturedStep, AModelThatIsNotFiniteAnywayIsTheFinding) {
  RecordingContext context(in_use(), "training/captured_step");
  CapturedTrial trial = quick_trial(context);
  trial.disturb = [](nsa::LanguageModelImpl& model, nsa::CudaGraph) {
    const at::NoGradGuard no_grad;
    model.head->weight.flatten()[0] = std::numeric_limits<double>::quiet_NaN();
  };
  judge_captured_steps(Subject(std::make_shared<Seams>()), trial, context);
  EXPECT_TRUE(training_tests::found(context, codes::kNonFiniteLoss)) << training_tests::listed(context);
  EXPECT_FALSE(training_tests::found(context, codes::kCapturedStep)) << training_tests::listed(context);
}

}  // namespace
