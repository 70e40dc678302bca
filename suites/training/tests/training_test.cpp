#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <numbers>

#include "suites/codes.hpp"
#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/stops.hpp"
#include "suites/training/tests/support.hpp"
#include "suites/training/verdicts.hpp"

namespace suites {
namespace {

using testing::HasSubstr;
using tests::RecordingContext;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using namespace training_tests;  // NOLINT

TEST(Training, IsSilentOnAHealthyModel) {
  for (const std::string name : {"real_text", "loss_floor", "guards"}) {
    const RecordingContext context = run(name, std::make_shared<Seams>());
    EXPECT_TRUE(context.findings.empty()) << name << "\n" << listed(context);
    EXPECT_GT(context.checks, 1) << name;
  }
}

TEST(Training, StandardCasesAreSilentOnAHealthyModel) {
  const auto smaller = on_configuration([](nsa::Config& c) {
    c.model.n_layers = 1;
    c.train.batch_size = 4;
  });
  for (const std::string id :
       {"steps[data=text,precision=bf16,steps=10]", "steps[data=synthetic,precision=fp32,steps=10]",
        "accumulation[precision=fp32]", "accumulation[precision=bf16]", "variants"}) {
    const RecordingContext context = run(id, smaller);
    EXPECT_TRUE(context.findings.empty()) << id << "\n" << listed(context);
    EXPECT_GT(context.checks, 0) << id;
  }
}

TEST(Training, TellsAStepTable) {
  const RecordingContext context = run("real_text", std::make_shared<Seams>());
  ASSERT_EQ(context.facts["steps"].size(), 10U);
  const harness::Json& last = context.facts["steps"][9];
  EXPECT_EQ(last["step"], 9);
  for (const char* key : {"loss", "lr", "grad_norm", "ms"}) EXPECT_TRUE(last[key].is_number()) << key;
}

TEST(Training, ANanInTheThirdBackwardPassIsNamedWithStepAndParameter) {
  const RecordingContext context = run("real_text", on_model([](nsa::LanguageModelImpl& model) {
                                         auto calls = std::make_shared<int>(0);
                                         model.head->weight.register_hook([calls](const at::Tensor& gradient) {
                                           return ++*calls == 3 ? gradient * kNan : gradient;
                                         });
                                       }));
  ASSERT_TRUE(found(context, codes::kNonFiniteGradientStep)) << listed(context);
  const auto& f = finding(context, codes::kNonFiniteGradientStep);
  EXPECT_EQ(f.evidence["step"], 2);
  EXPECT_THAT(f.message, HasSubstr("head.weight"));
  EXPECT_FALSE(found(context, codes::kGuardMissed)) << listed(context);
  EXPECT_FALSE(found(context, codes::kLossDoesNotFall)) << "a stopped run says nothing about the fall";
  EXPECT_FALSE(found(context, codes::kSuspiciousFall)) << listed(context);
}

TEST(Training, ANanWeightIsANonFiniteLoss) {
  const RecordingContext context = run("real_text", on_model([](nsa::LanguageModelImpl& model) {
                                         const at::NoGradGuard no_grad;
                                         model.head->weight.flatten()[5] = kNan;
                                       }));
  EXPECT_TRUE(found(context, codes::kNonFiniteLoss)) << listed(context);
  EXPECT_TRUE(found(context, codes::kInitialLoss)) << "NaN passes no bound";
}

TEST(Training, ALearningRateNearZeroDoesNotLowerTheLoss) {
  const RecordingContext context = run("real_text", on_configuration([](nsa::Config& c) { c.train.lr = 1e-9; }));
  EXPECT_TRUE(found(context, codes::kLossDoesNotFall)) << listed(context);
}

TEST(Training, FrozenWeightsDoNotLowerTheLoss) {
  const RecordingContext context = run("real_text", on_model([](nsa::LanguageModelImpl& model) {
                                         for (at::Tensor& p : model.parameters()) {
                                           p.register_hook([](const at::Tensor& g) { return at::zeros_like(g); });
                                         }
                                       }));
  EXPECT_TRUE(found(context, codes::kLossDoesNotFall)) << listed(context);
  EXPECT_TRUE(found(context, codes::kGradientNorm)) << "a gradient norm of 0 while training";
}

TEST(Training, AnInitialLossFarFromChanceIsFound) {
  const RecordingContext context = run("real_text", on_model([](nsa::LanguageModelImpl& model) {
                                         const at::NoGradGuard no_grad;
                                         model.head->weight.mul_(3);
                                       }),
                                       settings("4"));
  EXPECT_TRUE(found(context, codes::kInitialLoss)) << listed(context);
}

TEST(Training, AWindowThatReadsTheNextValueBeatsChance) {
  const RecordingContext context = run("loss_floor", leaking_window());
  EXPECT_TRUE(found(context, codes::kLossBelowFloor)) << context.metrics.dump();
}

std::shared_ptr<Seams> on_ops(std::function<nsa::Ops(nsa::Ops, const nsa::Call&)> change) {
  auto seams = std::make_shared<Seams>();
  seams->ops.push_back(std::move(change));
  return seams;
}

// A product that is not finite by itself: its first rows are NaN.
nsa::Ops nan_in_first_rows(nsa::Ops ops, const nsa::Call&) {
  ops.replace(&nsa::Ops::attend_compressed, [inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
    nsa::Attended out = inner(args);
    const at::Tensor first = at::arange(args.q.size(1), at::kLong).lt(2).view({1, -1, 1, 1});
    out.o = at::where(first, at::full({}, kNan, out.o.options()), out.o);
    return out;
  });
  return ops;
}

TEST(Training, AGuardIsNotBlamedForAProductThatIsNotFinite) {
  const RecordingContext context = run("guards", on_ops(nan_in_first_rows));
  EXPECT_TRUE(found(context, codes::kNonFiniteLoss)) << listed(context);
  EXPECT_FALSE(found(context, codes::kGuardMissed)) << listed(context);
}

// The mode ends with the first pass of the model, as a guard does that is made in a block of its own.
TEST(Training, AnAnomalyModeThatEndsEarlyIsFound) {
  const RecordingContext context =
      run("guards", on_ops([](nsa::Ops ops, const nsa::Call&) {
            ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
              torch::autograd::AnomalyMode::set_enabled(false);
              return inner(args);
            });
            return ops;
          }));
  EXPECT_TRUE(found(context, codes::kFlagIgnored)) << listed(context);
}

// A flag that cuts parameters off or holds the gates still is no guard's fault.
TEST(Training, GuardsAreSilentUnderFlagsForDebugging) {
  for (const auto& [name, value] :
       {std::pair{"NSA_STOPGRAD_GATES", "1"}, {"NSA_FORCE_BRANCH", "win"}, {"NSA_FORCE_UNIFORM_GATE", "1"}}) {
    ASSERT_EQ(setenv(name, value, 1), 0);
    const RecordingContext context = run("guards", std::make_shared<Seams>());
    unsetenv(name);
    EXPECT_TRUE(context.findings.empty()) << name << "\n" << listed(context);
    EXPECT_GT(context.checks, 5) << name;
    EXPECT_FALSE(context.facts.contains("nan_in_one_gradient")) << name << ": it was not tried";
  }
}

// The third model of the case is the one whose gradient is to be spoilt. When that gradient never comes, nothing was
// planted, and no guard can be accused of having let it pass.
TEST(Training, AHookThatNeverFiresIsAnotherThingThanALateCheck) {
  const auto models = std::make_shared<int>(0);
  const auto seams = on_model([models](nsa::LanguageModelImpl& model) {
    if (++*models == 3) model.runtime->flags.forced_branch = nsa::ForcedBranch::win;  // the gates learn nothing
  });
  try {
    const RecordingContext context = run("guards", seams);
    ADD_FAILURE() << "the case ended as if it had planted something\n" << listed(context);
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the NaN never reached the gradient of layers.1.attention.gate"));
  }
}

TEST(Training, AnInplaceWriteIsAFindingAndNoException) {
  const auto overwrite = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended out = inner(args);
      const at::NoGradGuard no_grad;
      if (out.o.requires_grad()) args.v.as_strided({1}, {1}, args.v.storage_offset()).mul_(1.0);
      return out;
    });
    return ops;
  };
  for (const std::string name : {"real_text", "loss_floor", "guards"}) {
    const RecordingContext context = run(name, on_ops(overwrite));
    EXPECT_TRUE(found(context, codes::kInplaceWrite)) << name << "\n" << listed(context);
  }
}

TEST(TrainingParts, LearningRateAgainstHandComputedValues) {
  nsa::TrainConfig config;
  config.lr = 1;
  config.lr_min = 0.2;
  config.steps = 7;
  config.warmup_steps = 2;
  using training_cases::expected_learning_rate;
  EXPECT_DOUBLE_EQ(expected_learning_rate(config, 0), 0.5);
  EXPECT_DOUBLE_EQ(expected_learning_rate(config, 1), 1);
  EXPECT_DOUBLE_EQ(expected_learning_rate(config, 2), 1);
  EXPECT_DOUBLE_EQ(expected_learning_rate(config, 4), 0.6);  // half way down
  EXPECT_DOUBLE_EQ(expected_learning_rate(config, 6), 0.2);
  EXPECT_DOUBLE_EQ(expected_learning_rate(config, 60), 0.2);
}

TEST(TrainingParts, AgreesWithTheTrainersScheduleOnOddLengths) {
  for (const std::int64_t steps : {1, 2, 3, 4, 10, 37}) {
    for (const std::int64_t warm_up : {0, 1, 2, 5}) {
      nsa::TrainConfig config;
      config.lr = 3e-4;
      config.lr_min = 1e-5;
      config.steps = steps;
      config.warmup_steps = warm_up;
      for (std::int64_t t = 0; t < steps; ++t) {
        EXPECT_NEAR(training_cases::expected_learning_rate(config, t), nsa::train::learning_rate(config, t), 1e-15)
            << "steps " << steps << " warm-up " << warm_up << " step " << t;
      }
    }
  }
}

TEST(TrainingParts, ChangedWeightsSeesOneBitAndToleratesNan) {
  const Subject subject(std::make_shared<Seams>());
  nsa::ModelConfig config;
  config.dim = 16;
  config.n_layers = 1;
  config.n_heads = 2;
  config.n_kv_groups = 1;
  config.d_k = config.d_v = 8;
  Instance instance = subject.model({.config = config, .flags = {}, .seed = 3});
  const at::NoGradGuard no_grad;
  instance.model->head->weight.flatten()[0] = kNan;
  const auto before = training_cases::copy_weights(*instance.model);
  EXPECT_TRUE(training_cases::changed_weights(before, *instance.model).empty());
  EXPECT_EQ(training_cases::nonfinite_weight(*instance.model), "head.weight");
  at::Tensor element = instance.model->embedding->weight.flatten()[7];
  element.copy_(at::nextafter(element, at::full_like(element, 9)));
  EXPECT_EQ(training_cases::changed_weights(before, *instance.model), std::vector<std::string>{"embedding.weight"});
}

TEST(TrainingParts, RandomTokensAreUniformFreshAndRepeatable) {
  training_cases::RandomTokens a(32, 5), b(32, 5);
  const at::Tensor first = a.next(50, 64);
  EXPECT_TRUE(at::equal(first, b.next(50, 64)));
  EXPECT_FALSE(at::equal(first, a.next(50, 64)));
  EXPECT_GE(first.min().item<std::int64_t>(), 0);
  EXPECT_LT(first.max().item<std::int64_t>(), 32);
  EXPECT_GT(at::bincount(first.flatten(), {}, 32).min().item<std::int64_t>(), 50);  // 100 expected
}

}  // namespace
}  // namespace suites
