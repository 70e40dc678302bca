// Steps that begin before the one before has ended (Trainer::step(goes_on)): the reports, the state and the end of a
// run are those of steps that wait for one another. On a CPU, where a step that has begun has ended too, and on a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "nsa/tests/graph_steps.hpp"
#include "nsa/train/graph_step.hpp"

namespace nsa::train::graph_steps {
namespace {

constexpr std::int64_t kRare = 7;  // a token of the batches that are asked for, and of no other

// `whole` batches, then one of fewer rows, then nothing. Batch `throws_at` cannot be read.
class Rows : public BatchStream {
 public:
  Rows(const TrainConfig& config, std::int64_t whole, std::set<std::int64_t> with_rare = {},
       std::int64_t throws_at = -1)
      : config_(config), whole_(whole), throws_at_(throws_at), with_rare_(std::move(with_rare)) {}
  Batch next() override {
    if (at_ == throws_at_) throw std::runtime_error("line 5 cannot be read");
    if (at_ > whole_) return {};
    const std::int64_t rows = at_ == whole_ ? 1 : config_.batch_size;
    auto tokens = nsa::fixtures::bytes({rows, config_.seq_len + 1}, static_cast<std::uint64_t>(100 + at_));
    tokens.masked_fill_(tokens == kRare, kRare + 1);
    if (with_rare_.contains(at_)) tokens[0][3] = kRare;
    ++at_;
    return {tokens, {}};
  }
  [[nodiscard]] nlohmann::json position() const override { return {{"at", at_}}; }
  void seek(const nlohmann::json& position) override { at_ = position.at("at"); }

 private:
  TrainConfig config_;
  std::int64_t at_ = 0, whole_, throws_at_;
  std::set<std::int64_t> with_rare_;
};

class StepAhead : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !at::hasCUDA()) GTEST_SKIP() << "no CUDA device: there are no graphs without one";
    config_ = quick();
    model_ = nsa::fixtures::tiny();
    if (GetParam() != at::kCUDA) return;
    model_.dim = 64;  // widths that our own kernels serve
    model_.d_k = model_.d_v = 32;
    model_.nsa = {.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32};
    config_.precision = Precision::bf16;
    config_.seq_len = 128;
  }
  [[nodiscard]] std::unique_ptr<Trainer> trainer(std::shared_ptr<BatchStream> stream) {
    lm_ = nsa::fixtures::make_model(model_);
    lm_->to(GetParam());
    return std::make_unique<Trainer>(lm_, config_, std::move(stream));
  }
  [[nodiscard]] std::int64_t first_ahead() const { return GetParam() == at::kCUDA ? GraphStep::kWarmUp : 0; }

  TrainConfig config_;
  nsa::ModelConfig model_;
  LanguageModel lm_{nullptr};  // of the last trainer
};

constexpr std::int64_t kSteps = 10;

TEST_P(StepAhead, ReportsAndStateAreThoseOfStepsThatWait) {
  const auto waits = trainer(std::make_shared<Rows>(config_, 20));
  const auto ahead = trainer(std::make_shared<Rows>(config_, 20));
  std::int64_t begun = 0;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    EXPECT_TRUE(same(ahead->step(/*goes_on=*/i + 1 < kSteps), waits->step())) << i;
    begun += ahead->is_ahead() ? 1 : 0;
    if (ahead->is_ahead()) {
      EXPECT_THROW((void)ahead->state(), std::logic_error);
    }
  }
  EXPECT_EQ(begun, kSteps - 1 - first_ahead());
  EXPECT_FALSE(ahead->is_ahead());
  const TrainState a = ahead->state(), b = waits->state();
  EXPECT_TRUE(same(a, b));
  EXPECT_EQ(a.facts, b.facts);
}

// The step behind one that is not finite is taken back, with its batch; the run goes on as if it had waited.
TEST_P(StepAhead, NothingChangesBehindAStepThatIsNotFinite) {
  constexpr std::int64_t kBad = 6;
  const auto sick = [](TrainState state) {
    for (auto& [name, tensor] : state.tensors)
      if (name == "model/embedding.weight" || name == "optimizer/master/embedding.weight")
        tensor[kRare].fill_(std::numeric_limits<double>::quiet_NaN());
    return state;
  };
  const auto waits = trainer(std::make_shared<Rows>(config_, 20, std::set{kBad}));
  const auto ahead = trainer(std::make_shared<Rows>(config_, 20, std::set{kBad}));
  for (Trainer* each : {waits.get(), ahead.get()}) {
    for (std::int64_t i = 0; i < kBad - 1; ++i) (void)each->step();
    each->load(sick(each->state()));
    ASSERT_EQ(each->step(/*goes_on=*/each == ahead.get()).stop, Stop::none);
  }
  ASSERT_TRUE(ahead->is_ahead());
  for (int time = 0; time < 2; ++time) {  // the same step may be tried again
    const StepReport bad = ahead->step(/*goes_on=*/true), expected = waits->step();
    EXPECT_FALSE(ahead->is_ahead());
    EXPECT_EQ(bad.stop, Stop::nonfinite_loss);
    EXPECT_EQ(bad.parameter, "embedding.weight");
    EXPECT_EQ(std::make_tuple(bad.step, bad.stop, bad.anomaly, bad.parameter),
              std::make_tuple(expected.step, expected.stop, expected.anomaly, expected.parameter));
    const TrainState a = ahead->state(), b = waits->state();
    EXPECT_TRUE(same(a, b));
    EXPECT_EQ(a.facts, b.facts);
  }
  const auto healthy = [](TrainState state) {
    for (auto& [name, tensor] : state.tensors)
      if (tensor.is_floating_point()) tensor.nan_to_num_(0.25);
    return state;
  };
  for (Trainer* each : {waits.get(), ahead.get()}) each->load(healthy(each->state()));
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_TRUE(same(ahead->step(/*goes_on=*/i < 3), waits->step())) << i;
  EXPECT_TRUE(same(ahead->state(), waits->state()));
}

TEST_P(StepAhead, TheEndOfTheDataIsTheSame) {
  const auto waits = trainer(std::make_shared<Rows>(config_, 7));
  const auto ahead = trainer(std::make_shared<Rows>(config_, 7));
  for (std::int64_t i = 0; i < 9; ++i) {
    const StepReport made = ahead->step(/*goes_on=*/true), expected = waits->step();
    EXPECT_TRUE(same(made, expected)) << i;
    EXPECT_EQ(made.stop == Stop::end_of_data, i == 8);
  }
  EXPECT_EQ(ahead->state().facts, waits->state().facts);
}

TEST_P(StepAhead, WhatTheNextStepThrowsItThrowsItself) {
  const auto waits = trainer(std::make_shared<Rows>(config_, 20, std::set<std::int64_t>{}, 6));
  const auto ahead = trainer(std::make_shared<Rows>(config_, 20, std::set<std::int64_t>{}, 6));
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_TRUE(same(ahead->step(/*goes_on=*/true), waits->step())) << i;
  EXPECT_THROW((void)ahead->step(), DataError);
  EXPECT_THROW((void)waits->step(), DataError);
  EXPECT_EQ(ahead->steps_made(), 6);
  EXPECT_TRUE(same(ahead->state(), waits->state()));
  EXPECT_EQ(ahead->state().facts, waits->state().facts);
}

// Whose gradient it was is known although another step's gradients came in between.
TEST_P(StepAhead, TheGradientThatIsNotFiniteIsNamed) {
  if (GetParam() == at::kCUDA) GTEST_SKIP() << "a hook does not run in a replay, so nothing spoils one gradient there";
  const auto ahead = trainer(std::make_shared<Rows>(config_, 20));
  const auto named = lm_->named_parameters();
  const auto victim = named[named.size() / 2];
  int passes = 0;
  victim.value().register_hook([&passes](const torch::Tensor& gradient) {
    const bool bad = ++passes == 2 || passes == 4;  // of the second step, and of that step again
    return bad ? gradient * std::numeric_limits<double>::quiet_NaN() : gradient;
  });
  EXPECT_EQ(ahead->step(/*goes_on=*/true).stop, Stop::none);
  const StepReport bad = ahead->step(/*goes_on=*/true);
  EXPECT_EQ(bad.stop, Stop::nonfinite_gradient);
  EXPECT_EQ(bad.parameter, victim.key());
  EXPECT_EQ(passes, 4);
  EXPECT_EQ(ahead->steps_made(), 1);
}

INSTANTIATE_TEST_SUITE_P(Devices, StepAhead, ::testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& tested) { return tested.param == at::kCUDA ? "gpu" : "cpu"; });

}  // namespace
}  // namespace nsa::train::graph_steps
