// The instruments: trend, counting oracle, memory meter, second optimizer.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>

#include "nsa/train/text.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/memory_in_use.hpp"
#include "suites/training/ngram.hpp"
#include "suites/training/tests/support.hpp"
#include "suites/training/update_witness.hpp"
#include "suites/training/verdicts.hpp"

namespace suites::training_cases {
namespace {

using training_tests::RecordingContext;

TEST(NgramOracle, KnowsNothingAtFirst) {
  NgramOracle oracle(256);
  EXPECT_NEAR(oracle.observe(std::vector<std::int64_t>{1, 2}), std::log(256.0), 1e-12);
}

TEST(NgramOracle, HandComputedUnigramAndBigram) {
  // Order 1, 4 symbols. After 0 1 (context "" saw 1 once; context "0" saw 1 once):
  //   p(1 | 0) = (1 + 1 * p(1)) / 2 with p(1) = (1 + 1 * 1/4) / 2 = 5/8, hence 13/16
  NgramOracle oracle(4, 1);
  (void)oracle.observe(std::vector<std::int64_t>{0, 1});
  EXPECT_NEAR(oracle.observe(std::vector<std::int64_t>{0, 1}), -std::log(13.0 / 16), 1e-12);
}

TEST(NgramOracle, ProbabilitiesSumToOne) {
  const std::vector<std::int64_t> text = {0, 1, 2, 0, 1, 3, 0, 1, 2, 2};
  double sum = 0;
  for (std::int64_t symbol = 0; symbol < 5; ++symbol) {
    NgramOracle oracle(5, 3);
    (void)oracle.observe(text);
    sum += std::exp(-oracle.observe(std::vector<std::int64_t>{1, symbol}));
  }
  EXPECT_NEAR(sum, 1, 1e-12);
}

TEST(NgramOracle, RandomTokensStayAboveTheirEntropyAndTextFallsFast) {
  NgramOracle on_random(256), on_text(256);
  RandomTokens random(256, 7);
  const at::Tensor text = nsa::train::read_bytes(data_folder() / "fixtures/text/corpus.txt").to(at::kLong);
  double random_loss = 0, text_loss = 0;
  for (std::int64_t i = 0; i < 40; ++i) {
    const at::Tensor row = random.next(1, 1025).flatten(), crop = text.narrow(0, 20000 * i, 1025);
    random_loss = on_random.observe({row.const_data_ptr<std::int64_t>(), 1025});
    text_loss = on_text.observe({crop.const_data_ptr<std::int64_t>(), 1025});
  }
  EXPECT_GT(random_loss, std::log(256.0) - 0.1);
  EXPECT_LT(text_loss, 2.5);  // 40 KB of English
  EXPECT_GT(text_loss, 1.2);
}

TEST(MemoryMeter, SeesATensorAndAListExactly) {
  const MemoryMeter meter(at::kCPU);
  ASSERT_EQ(meter.host_source(), "malloc");
  const std::int64_t before = meter.now().host_bytes;
  {
    const at::Tensor tensor = at::ones({1 << 18});  // 1 MiB
    const std::vector<char> list(1 << 20, 'x');
    EXPECT_NEAR(static_cast<double>(meter.now().host_bytes - before), 2 << 20, 16384);
  }
  EXPECT_NEAR(static_cast<double>(meter.now().host_bytes - before), 0, 16384);
}

// A model of one layer, trained for some steps with the witness beside it; `reported` makes the rate that it is told.
double worst_update(nsa::TrainConfig change, const std::function<double(double)>& reported, bool watch_anyway = false) {
  const harness::Settings settings = training_tests::settings();
  const RecordingContext context(settings);
  RunPlan plan = training_tests::quick_plan(context);
  change.data = plan.config.train.data;
  plan.config.train = change;
  Instance instance = make_model(Subject(std::make_shared<Seams>()), plan);
  nsa::train::Trainer trainer(instance.model, plan.config.train, open_data(plan));
  EXPECT_TRUE(watch_anyway || UpdateWitness::can_watch(plan.config.train));
  UpdateWitness witness(instance.model->norm->weight, plan.config.train);
  double worst = 0;
  for (std::int64_t i = 0; i < plan.config.train.steps; ++i) {
    auto step = trainer.step();
    step.lr = reported(step.lr);
    worst = std::max(worst, witness.after(step).error);
  }
  return worst;
}

nsa::TrainConfig updates(nsa::Precision precision) {
  nsa::TrainConfig train;
  train.precision = precision;
  train.steps = 30;
  train.batch_size = 2;
  train.seq_len = 48;
  train.lr = 3e-3;
  train.grad_clip = 0.5;  // in force at some steps, at others not
  return train;
}

TEST(UpdateWitness, AgreesWithTheTrainer) {
  const auto honest = [](double lr) { return lr; };
  EXPECT_LT(worst_update(updates(nsa::Precision::fp32), honest), 0.5);
  EXPECT_LT(worst_update(updates(nsa::Precision::bf16), honest), 1);
  nsa::TrainConfig accumulated = updates(nsa::Precision::fp32);
  accumulated.accumulate_grad_batches = 3;
  EXPECT_LT(worst_update(accumulated, honest), 0.5);
}

TEST(UpdateWitness, SeesARateThatIsReportedAndNotApplied) {
  EXPECT_GT(worst_update(updates(nsa::Precision::fp32), [](double lr) { return 1.02 * lr; }), 1);
  EXPECT_GT(worst_update(updates(nsa::Precision::bf16), [](double lr) { return 2 * lr; }), 1);
}

// What the witness makes of 12 updates of a parameter by torch's AdamW. `cleared`: whether gradients are, in between;
// `clips`: whether they are clipped at `clip`, which is what the witness is told, by their own norm; `norm`: that of
// all the model's gradients together, times it.
std::vector<std::string> mistakes_of(const torch::optim::AdamWOptions& options, bool cleared = true, double clip = 1e9,
                                     bool clips = false, double norm = 1) {
  nsa::TrainConfig told;
  told.precision = nsa::Precision::fp32;
  told.lr = 1e-2;
  told.weight_decay = 0.1;
  told.grad_clip = clip;
  at::manual_seed(3);
  at::Tensor weight = at::randn({16}, at::kFloat).requires_grad_();
  torch::optim::AdamW optimizer({weight}, torch::optim::AdamWOptions(options).lr(told.lr));
  UpdateWitness witness(weight, told);
  for (std::int64_t i = 0; i < 12; ++i) {
    if (cleared) optimizer.zero_grad();
    (weight * at::randn({16})).sum().backward();
    nsa::train::StepReport report;
    report.step = i;
    report.lr = told.lr;
    const double own = weight.grad().norm().item<double>();
    report.grad_norm = (i % 2 == 0 ? norm : 1) * own;  // AdamW does not see a factor that stays
    if (clips && own > told.grad_clip) weight.mutable_grad().mul_(told.grad_clip / own);
    optimizer.step();
    witness.after(report);
  }
  return witness.mistakes();
}

TEST(UpdateWitness, NamesTheMistakeThatExplainsEveryUpdate) {
  using testing::ElementsAre;
  using torch::optim::AdamWOptions;
  const auto right = [] { return AdamWOptions().weight_decay(0.1); };
  EXPECT_THAT(mistakes_of(right()), testing::IsEmpty());
  EXPECT_THAT(mistakes_of(right(), /*cleared=*/false),
              ElementsAre("gradients are never cleared and add up from step to step"));
  EXPECT_THAT(mistakes_of(right(), /*cleared=*/false, /*clip=*/1, /*clips=*/true),
              ElementsAre("gradients are never cleared and add up from step to step"));
  EXPECT_THAT(mistakes_of(right(), true, /*clip=*/1, /*clips=*/true), testing::IsEmpty());
  EXPECT_THAT(mistakes_of(right(), true, /*clip=*/1), ElementsAre("gradients are not clipped"));
  EXPECT_THAT(mistakes_of(right(), true, /*clip=*/1, /*clips=*/true, /*norm=*/3),
              ElementsAre("each tensor is clipped by its own norm"));
  EXPECT_THAT(mistakes_of(right().weight_decay(0)), ElementsAre("there is no weight decay"));
  EXPECT_THAT(mistakes_of(right().weight_decay(0.2)), ElementsAre("weight decay is applied twice"));
  EXPECT_THAT(mistakes_of(right().betas({0.9, 0.95})), ElementsAre("beta2 is 0.95"));
  EXPECT_THAT(mistakes_of(right().betas({0.0, 0.999})), ElementsAre("beta1 is 0 (no momentum)"));
  EXPECT_THAT(mistakes_of(right().betas({0.7, 0.9})), testing::IsEmpty()) << "one that nobody thought of";
}

TEST(UpdateWitness, SeesUpdatesThatAreRoundedAway) {
  nsa::TrainConfig train = updates(nsa::Precision::bf16);
  train.master_weights = false;
  train.lr = 3e-4;
  train.steps = 60;
  EXPECT_FALSE(UpdateWitness::can_watch(train));
  EXPECT_GT(worst_update(
                train, [](double lr) { return lr; }, /*watch_anyway=*/true),
            1);
}

}  // namespace
}  // namespace suites::training_cases
