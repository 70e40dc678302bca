#include "nsa/train/trainer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/cuda.h>

#include <cmath>
#include <fstream>
#include <limits>

namespace trainer_test {

using namespace nsa::train;
using nsa::Config;
using nsa::LanguageModel;
using nsa::TrainConfig;
using testing::HasSubstr;

std::filesystem::path root() { return std::filesystem::path(__FILE__).parent_path() / "../.."; }

Config tiny() { return nsa::load_config(root() / "configs/models/tiny.yaml"); }

LanguageModel make_model(const Config& config, const nsa::Environment& environment = {}) {
  torch::manual_seed(static_cast<std::int64_t>(config.train.seed));
  nsa::Runtime runtime;
  runtime.flags = nsa::resolve(environment);
  runtime.ops = nsa::Dispatcher(runtime.flags).provider();
  return LanguageModel(config.model, runtime);
}

BatchSource text(const TrainConfig& config) {
  auto crops =
      std::make_shared<RandomCrops>(read_bytes(root() / config.data), config.batch_size, config.seq_len, config.seed);
  return [crops] { return crops->next(); };
}

// A shorter sequence, for the tests that are not about learning.
Config quick() {
  Config config = tiny();
  config.train.seq_len = 33;
  config.train.batch_size = 2;
  return config;
}

std::vector<torch::Tensor> values(const LanguageModel& model) {
  std::vector<torch::Tensor> copies;
  for (const auto& parameter : model->parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

::testing::AssertionResult same_bits(const LanguageModel& model, const std::vector<torch::Tensor>& before) {
  const auto named = model->named_parameters();
  for (std::size_t i = 0; i < before.size(); ++i)
    if (!torch::equal(named[i].value().detach(), before[i]))
      return ::testing::AssertionFailure() << named[i].key() << " changed";
  return ::testing::AssertionSuccess();
}

double largest_difference(const LanguageModel& a, const LanguageModel& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a->parameters().size(); ++i)
    largest = std::max(largest, (a->parameters()[i] - b->parameters()[i]).abs().max().item<double>());
  return largest;
}

TEST(Trainer, TenStepsOnTextLowerTheLoss) {
  const Config config = tiny();
  Trainer trainer(make_model(config), config.train, text(config.train));
  int calls = 0;
  const auto reports = trainer.run([&](const StepReport& report) { EXPECT_EQ(report.step, calls++); });
  ASSERT_EQ(reports.size(), 10U);
  EXPECT_EQ(calls, 10);
  for (const auto& report : reports) {
    EXPECT_EQ(report.stop, Stop::none);
    EXPECT_EQ(report.tokens, 8 * 128);
    EXPECT_GT(report.grad_norm, 0.0);
    EXPECT_GE(report.seconds, report.fetch_seconds);
    EXPECT_DOUBLE_EQ(report.lr, learning_rate(config.train, report.step));
  }
  EXPECT_NEAR(reports.front().loss, 5.71, 0.15);  // ln 256 + 1/6
  EXPECT_LT(reports.back().loss, reports.front().loss - 1.0);
  EXPECT_GT(reports.back().loss, 2.0);  // no byte model learns more in ten steps: less would be a leak
}

TEST(Trainer, Bf16TrainsToo) {
  Config config = tiny();
  config.train.precision = nsa::Precision::bf16;
  const auto model = make_model(config);
  Trainer trainer(model, config.train, text(config.train));
  for (const auto& parameter : model->parameters()) ASSERT_EQ(parameter.scalar_type(), at::kBFloat16);
  const auto reports = trainer.run();
  EXPECT_LT(reports.back().loss, reports.front().loss - 1.0);
}

TEST(Trainer, SameSeedSameLosses) {
  Config config = quick();
  config.train.steps = 3;
  Trainer a(make_model(config), config.train, text(config.train));
  Trainer b(make_model(config), config.train, text(config.train));
  const auto first = a.run(), second = b.run();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(first[i].loss, second[i].loss);
    EXPECT_EQ(first[i].grad_norm, second[i].grad_norm);
  }
}

TEST(Trainer, NonfiniteGradientStopsBeforeTheUpdateAndNamesTheParameter) {
  const Config config = quick();
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const auto model = make_model(config);
    Trainer trainer(model, config.train, text(config.train));
    ASSERT_EQ(trainer.step().stop, Stop::none);
    const auto named = model->named_parameters();
    const auto& victim = named[named.size() / 2];
    const auto hook = victim.value().register_hook([bad](const torch::Tensor& gradient) {
      torch::Tensor spoilt = gradient.clone();
      spoilt.view(-1)[0] = bad;
      return spoilt;
    });
    const auto before = values(model);
    const auto report = trainer.step();
    EXPECT_EQ(report.stop, Stop::nonfinite_gradient);
    EXPECT_EQ(report.anomaly, victim.key());
    EXPECT_EQ(report.step, 1);
    EXPECT_TRUE(std::isfinite(report.loss));
    EXPECT_FALSE(std::isfinite(report.grad_norm));
    EXPECT_TRUE(same_bits(model, before));

    // Nothing of the bad gradient is left behind: with the cause gone the same step goes through.
    victim.value().remove_hook(hook);
    const auto again = trainer.step();
    EXPECT_EQ(again.stop, Stop::none) << again.anomaly;
    EXPECT_EQ(again.step, 1);
    EXPECT_FALSE(same_bits(model, before));
  }
}

TEST(Trainer, NonfiniteLossStopsBeforeTheUpdate) {
  const Config config = quick();
  const auto model = make_model(config);
  {
    const torch::NoGradGuard no_grad;
    model->head->weight[3][5] = std::numeric_limits<float>::quiet_NaN();
  }
  Trainer trainer(model, config.train, text(config.train));
  const auto reports = trainer.run();
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].stop, Stop::nonfinite_loss);
  EXPECT_THAT(reports[0].anomaly, HasSubstr("NaN"));
  model->head->weight.detach()[3][5] = 0.0F;
  auto clean = make_model(config);
  clean->head->weight.detach()[3][5] = 0.0F;
  EXPECT_EQ(largest_difference(model, clean), 0.0);
}

TEST(Trainer, AnomalyModeIsAWitnessAndNotACrash) {
  const Config config = quick();
  const auto model = make_model(config, {{"NSA_DETECT_ANOMALY", "1"}});
  // A tensor hook in the middle of the graph: autograd itself must meet the NaN.
  model->runtime->observe = [](std::string_view, const at::Tensor& value) {
    if (value.requires_grad()) value.register_hook([](const torch::Tensor& g) { return g * NAN; });
  };
  Trainer trainer(model, config.train, text(config.train));
  const auto before = values(model);
  const auto report = trainer.step();
  EXPECT_EQ(report.stop, Stop::nonfinite_gradient);
  EXPECT_THAT(report.anomaly, HasSubstr("returned nan"));
  EXPECT_TRUE(same_bits(model, before));
  EXPECT_FALSE(torch::autograd::AnomalyMode::is_enabled());
}

// Four batches of one and one batch of four hold the same rows.
TEST(Trainer, AccumulationIsALargerBatch) {
  Config config = quick();
  config.train.steps = 3;
  config.train.batch_size = 4;
  auto whole = config.train, parts = config.train;
  parts.batch_size = 1;
  parts.accumulate_grad_batches = 4;
  const auto one_by_one = [source = text(config.train), rows = torch::Tensor(), next = std::int64_t{4}]() mutable {
    if (next == 4) {
      rows = source();
      next = 0;
    }
    return rows.narrow(0, next++, 1);
  };
  const auto a = make_model(config), b = make_model(config);
  const auto first = Trainer(a, whole, text(config.train)).run(), second = Trainer(b, parts, one_by_one).run();
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(first[i].loss, second[i].loss, 1e-5);
    EXPECT_NEAR(first[i].grad_norm, second[i].grad_norm, 1e-4);
    EXPECT_EQ(first[i].tokens, second[i].tokens);
  }
  EXPECT_LT(largest_difference(a, b), 2e-4);
}

TEST(Trainer, ClippingBoundsTheUpdateAndNotTheReport) {
  Config config = quick();
  const auto loose = Trainer(make_model(config), config.train, text(config.train)).step();
  config.train.grad_clip = 1e-3;
  const auto tight = Trainer(make_model(config), config.train, text(config.train)).step();
  EXPECT_EQ(loose.grad_norm, tight.grad_norm);
  EXPECT_GT(tight.grad_norm, config.train.grad_clip);
}

TEST(Trainer, HaltFileStopsBeforeTheStep) {
  const Config config = quick();
  const auto halt = std::filesystem::path(testing::TempDir()) / "HALT";
  std::filesystem::remove(halt);
  const auto model = make_model(config);
  Trainer trainer(model, config.train, text(config.train), halt);
  const auto reports = trainer.run([&](const StepReport& report) {
    if (report.step == 1) std::ofstream(halt).flush();
  });
  std::filesystem::remove(halt);
  ASSERT_EQ(reports.size(), 3U);
  EXPECT_EQ(reports[1].stop, Stop::none);
  EXPECT_EQ(reports[2].stop, Stop::halted);
  EXPECT_EQ(reports[2].tokens, 0);
  EXPECT_THAT(reports[2].anomaly, HasSubstr("HALT exists"));
}

TEST(Trainer, EndOfDataStopsAndDropsAHalfAccumulatedStep) {
  Config config = quick();
  config.train.accumulate_grad_batches = 2;
  int left = 3;
  const auto source = [inner = text(config.train), &left]() { return left-- > 0 ? inner() : torch::Tensor(); };
  const auto model = make_model(config);
  Trainer trainer(model, config.train, source);
  ASSERT_EQ(trainer.step().stop, Stop::none);
  const auto before = values(model);
  const auto report = trainer.step();
  EXPECT_EQ(report.stop, Stop::end_of_data);
  EXPECT_EQ(report.anomaly, "no batch 2 of 2 for this step");
  EXPECT_TRUE(same_bits(model, before));
  for (const auto& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(Trainer, BadBatchesAreRefusedWithWhatCame) {
  const Config config = quick();
  const auto refusal = [&](const torch::Tensor& batch) -> std::string {
    Trainer trainer(make_model(config), config.train, [&] { return batch; });
    try {
      (void)trainer.step();
    } catch (const nsa::ContractError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(torch::zeros({2, 33}, at::kLong)),
            "batch: Long 2x33 on cpu; [batch, 34] int64 on the CPU is needed");
  EXPECT_THAT(refusal(torch::zeros({2, 34}, at::kInt)), HasSubstr("Int 2x34"));
  EXPECT_THAT(refusal(torch::zeros({34}, at::kLong)), HasSubstr("Long 34 on cpu"));
  EXPECT_EQ(refusal(torch::full({2, 34}, 256, at::kLong)), "batch: token 256 is outside 0..255");
  EXPECT_EQ(refusal(torch::full({2, 34}, -1, at::kLong)), "batch: token -1 is outside 0..255");
}

TEST(Trainer, RecomputationIsSwitchedByTheConfiguration) {
  Config config = quick();
  const auto kept = make_model(config), recomputed = make_model(config);
  const auto a = Trainer(kept, config.train, text(config.train)).step();
  config.train.gradient_checkpointing = true;
  const auto b = Trainer(recomputed, config.train, text(config.train)).step();
  EXPECT_FALSE(kept->runtime->recompute);
  EXPECT_TRUE(recomputed->runtime->recompute);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(largest_difference(kept, recomputed), 0.0);
}

TEST(Trainer, ConfigurationsThatItCannotServe) {
  Config config = quick();
  config.train.accumulate_grad_batches = 0;
  EXPECT_THROW(Trainer(make_model(config), config.train, text(config.train)), std::invalid_argument);
  EXPECT_THROW(Trainer(LanguageModel(nullptr), quick().train, text(quick().train)), std::invalid_argument);
}

TEST(Trainer, TrainsOnAGpuWhereTheModelIs) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  Config config = tiny();
  config.train.precision = nsa::Precision::bf16;
  LanguageModel model = make_model(config);
  model->to(at::kCUDA);
  const auto reports = Trainer(model, config.train, text(config.train)).run();
  EXPECT_LT(reports.back().loss, reports.front().loss - 1.0);
}

}  // namespace trainer_test
