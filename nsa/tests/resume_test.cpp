// A trainer that goes on from another one's state makes the same steps, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "nsa/tests/scratch.hpp"
#include "nsa/train/checkpoint.hpp"
#include "nsa/train/hash.hpp"
#include "nsa/train/prefetch.hpp"
#include "nsa/train/stream.hpp"
#include "nsa/train/trainer.hpp"

namespace resume_test {

using namespace nsa::train;
using nsa::Config;
using nsa::LanguageModel;
using testing::HasSubstr;

std::filesystem::path root() { return std::filesystem::path(__FILE__).parent_path() / "../.."; }

Config quick() {
  Config config = nsa::load_config(root() / "configs/models/tiny.yaml");
  config.model.n_layers = 1;
  config.train.seq_len = 33;
  config.train.batch_size = 2;
  config.train.steps = 8;
  return config;
}

struct Bench {
  LanguageModel model{nullptr};
  std::unique_ptr<Trainer> trainer;
};

Bench make_bench(const Config& config, std::uint64_t weights_seed = 1) {
  torch::manual_seed(weights_seed);
  nsa::Runtime runtime;
  runtime.flags = nsa::resolve({});
  runtime.ops = nsa::Dispatcher(runtime.flags).provider();
  Bench run;
  run.model = LanguageModel(config.model, runtime);
  StreamOptions options;
  options.data = (root() / config.train.data).string();
  options.batch_size = config.train.batch_size;
  options.seq_len = config.train.seq_len;
  options.seed = config.train.seed;
  options.packed = config.train.packed;
  options.order = config.train.order == nsa::DataOrder::sequential     ? Order::sequential
                  : config.train.order == nsa::DataOrder::random_crops ? Order::random_crops
                                                                       : Order::shuffled;
  options.epochs = config.train.epochs;
  auto stream = std::make_shared<Prefetch>(open_stream(options), PrefetchOptions{.depth = 3});
  run.trainer = std::make_unique<Trainer>(run.model, config.train, std::move(stream));
  return run;
}

void expect_same_state(const TrainState& a, const TrainState& b) {
  EXPECT_EQ(a.facts, b.facts);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name;
}

// Uninterrupted, and stopped after each step in turn, with a checkpoint file in between.
void expect_resume_equals_uninterrupted(const Config& config) {
  const Bench whole = make_bench(config);
  const auto reports = whole.trainer->run();
  ASSERT_EQ(reports.size(), 8U);
  const nsa::fixtures::Scratch folder;
  const auto file = folder / "resume.safetensors";
  for (const std::int64_t stop : {0, 1, 4, 7}) {
    const Bench first = make_bench(config);
    for (std::int64_t i = 0; i < stop; ++i) (void)first.trainer->step();
    write_checkpoint(file, first.trainer->state());
    torch::manual_seed(99);
    (void)torch::rand({3});  // another process stands elsewhere
    const Bench second = make_bench(config, /*weights_seed=*/2);
    second.trainer->load(read_checkpoint(file));
    EXPECT_EQ(second.trainer->steps_made(), stop);
    const auto rest = second.trainer->run();
    ASSERT_EQ(rest.size(), reports.size() - static_cast<std::size_t>(stop));
    for (std::size_t i = 0; i < rest.size(); ++i) {
      const StepReport& expected = reports[i + static_cast<std::size_t>(stop)];
      EXPECT_EQ(rest[i].step, expected.step);
      EXPECT_EQ(rest[i].loss, expected.loss);
      EXPECT_EQ(rest[i].lr, expected.lr);
      EXPECT_EQ(rest[i].grad_norm, expected.grad_norm);
      EXPECT_EQ(rest[i].tokens, expected.tokens);
    }
    EXPECT_EQ(weights_hash(*second.model), weights_hash(*whole.model));
    expect_same_state(second.trainer->state(), whole.trainer->state());
  }
}

TEST(Resume, EqualsUninterrupted) { expect_resume_equals_uninterrupted(quick()); }

TEST(Resume, EqualsUninterruptedWithAccumulationAndRandomCrops) {
  Config config = quick();
  config.train.accumulate_grad_batches = 3;
  config.train.order = nsa::DataOrder::random_crops;
  expect_resume_equals_uninterrupted(config);
}

// Four batches a pass: a step of three takes its batches from two passes, in two orders.
TEST(Resume, EqualsUninterruptedOverSeveralShuffledPasses) {
  const nsa::fixtures::Scratch folder;
  std::ofstream(folder / "short.txt") << std::string(33 * 7, 'a') << std::string(20, 'b');
  Config config = quick();
  config.train.data = folder / "short.txt";
  config.train.accumulate_grad_batches = 3;
  config.train.order = nsa::DataOrder::shuffled;
  config.train.epochs = 5;
  expect_resume_equals_uninterrupted(config);
}

TEST(Resume, ARunThatDivergesStopsAlikeWhereverItIsResumed) {
  Config config = quick();
  config.train.steps = 200;
  config.train.lr = 1;
  config.train.warmup_steps = 0;
  config.train.grad_clip = 1e6;
  const Bench whole = make_bench(config);
  const auto reports = whole.trainer->run();
  ASSERT_EQ(reports.back().stop, Stop::diverged);
  const std::int64_t stop = reports.back().step;
  ASSERT_GT(stop, 6);
  const Bench first = make_bench(config);
  for (std::int64_t i = 0; i < stop - 5; ++i) (void)first.trainer->step();
  const Bench second = make_bench(config, 2);
  second.trainer->load(first.trainer->state());
  const auto rest = second.trainer->run();
  EXPECT_EQ(rest.back().stop, Stop::diverged);
  EXPECT_EQ(rest.back().step, stop);
  EXPECT_EQ(rest.back().anomaly, reports.back().anomaly);
  EXPECT_EQ(weights_hash(*second.model), weights_hash(*whole.model));
  config.train.stop_on_divergence = false;
  const Bench third = make_bench(config, 2);
  third.trainer->load(whole.trainer->state());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(third.trainer->step().stop, Stop::none);
}

TEST(Resume, EqualsUninterruptedInBf16WithMasters) {
  Config config = quick();
  config.train.precision = nsa::Precision::bf16;
  expect_resume_equals_uninterrupted(config);
  config.train.master_weights = false;
  expect_resume_equals_uninterrupted(config);
}

TEST(Resume, EqualsUninterruptedPackedAndRecomputed) {
  Config config = quick();
  config.train.batch_size = 1;
  config.train.packed = true;
  config.train.gradient_checkpointing = true;
  expect_resume_equals_uninterrupted(config);
}

TEST(Resume, LosingAnyPartOfTheStateIsSeen) {
  const Config config = quick();
  const Bench whole = make_bench(config);
  for (int i = 0; i < 3; ++i) (void)whole.trainer->step();
  const TrainState state = whole.trainer->state();
  const double next_loss = whole.trainer->step().loss;
  const auto loss_from = [&](const TrainState& from) {
    const Bench run = make_bench(config, 2);
    run.trainer->load(from);
    (void)run.trainer->step();
    return run.trainer->step().loss;
  };
  const double right = loss_from(state);
  EXPECT_EQ(make_bench(config).trainer->step().loss, make_bench(config).trainer->step().loss);
  TrainState other_data = state;
  other_data.facts["data"] = make_bench(config).trainer->state().facts["data"];
  EXPECT_NE(loss_from(other_data), right);
  TrainState other_moments = state;
  for (auto& [name, tensor] : other_moments.tensors)
    if (name.starts_with("optimizer/exp_avg/")) tensor = tensor * 0;
  EXPECT_NE(loss_from(other_moments), right);
  EXPECT_TRUE(std::isfinite(next_loss));
}

TEST(Resume, TheStateIsACopyAndOfTheLastStepMade) {
  const Bench run = make_bench(quick());
  (void)run.trainer->step();
  const TrainState before = run.trainer->state();
  const at::Tensor kept = before.tensors.at("model/head.weight").clone();
  (void)run.trainer->step();
  EXPECT_TRUE(at::equal(before.tensors.at("model/head.weight"), kept));
  EXPECT_EQ(before.step(), 1);
  EXPECT_FALSE(at::equal(run.trainer->state().tensors.at("model/head.weight"), kept));
}

TEST(Resume, AStoppedStepGivesItsDataBack) {
  const Config config = quick();
  const Bench clean = make_bench(config), run = make_bench(config);
  (void)clean.trainer->step();
  (void)run.trainer->step();
  const auto named = run.model->named_parameters();
  const auto& victim = named[named.size() / 2];
  const auto hook = victim.value().register_hook(
      [](const at::Tensor& gradient) { return at::full_like(gradient, std::numeric_limits<double>::quiet_NaN()); });
  const StepReport bad = run.trainer->step();
  EXPECT_EQ(bad.stop, Stop::nonfinite_gradient);
  EXPECT_EQ(bad.parameter, victim.key());
  expect_same_state(run.trainer->state(), clean.trainer->state());
  victim.value().remove_hook(hook);
  EXPECT_EQ(run.trainer->step().loss, clean.trainer->step().loss);
  expect_same_state(run.trainer->state(), clean.trainer->state());
}

TEST(Resume, AnUpdateThatWasCutOffHasNoState) {
  const Bench run = make_bench(quick());
  (void)run.trainer->step();
  // Every gradient arrives, and the update finds one that it cannot read.
  run.trainer->on_phase([&](std::string_view phase) {
    if (phase == "update") run.model->head->weight.mutable_grad() = at::zeros({256, 64}).to_sparse();
  });
  EXPECT_ANY_THROW((void)run.trainer->step());
  EXPECT_THROW((void)run.trainer->state(), std::logic_error);
}

std::string refusal(const Bench& run, const TrainState& state) {
  const std::string before = weights_hash(*run.model);
  try {
    run.trainer->load(state);
  } catch (const StateMismatch& mismatch) {
    EXPECT_EQ(weights_hash(*run.model), before);
    EXPECT_EQ(run.trainer->steps_made(), 0);
    return mismatch.what();
  }
  return "";
}

TEST(Resume, AnotherConfigurationIsRefusedWithItsKeys) {
  const TrainState state = make_bench(quick()).trainer->state();
  Config other = quick();
  other.train.lr = 1e-4;
  other.model.nsa.w = 16;
  const std::string text = refusal(make_bench(other), state);
  EXPECT_THAT(text, testing::AllOf(HasSubstr("nsa.w is 32 there and 16 here"),
                                   HasSubstr("train.lr is 0.003 there and 0.0001 here")));
  Config chattier = quick();
  chattier.train.log_every = 3;
  EXPECT_EQ(refusal(make_bench(chattier), state), "");
}

TEST(Resume, OtherTensorsAndOtherDataAreRefused) {
  TrainState state = make_bench(quick()).trainer->state();
  state.tensors.erase("model/norm.weight");
  state.tensors["model/extra"] = at::zeros({2});
  state.tensors["optimizer/exp_avg/head.weight"] = at::zeros({2});
  EXPECT_THAT(
      refusal(make_bench(quick()), state),
      testing::AllOf(HasSubstr("parameter norm.weight is missing there"), HasSubstr("parameter extra is unknown"),
                     HasSubstr("optimizer state exp_avg/head.weight is Float [2] there")));
  TrainState moved = make_bench(quick()).trainer->state();
  moved.facts["data"] = nullptr;
  EXPECT_THAT(refusal(make_bench(quick()), moved), HasSubstr("the data is no stream there and a stream here"));
  moved.facts["data"] = {{"kind", "something else"}};
  EXPECT_THAT(refusal(make_bench(quick()), moved), HasSubstr("not the data of this run"));
}

TEST(Resume, WorksWithoutAStreamToo) {
  const Config config = quick();
  const auto trainer_of = [&](const Bench& run) {
    auto crops = std::make_shared<RandomCrops>(read_bytes(root() / config.train.data), 2, 33, 5);
    return Trainer(run.model, config.train, [crops] { return crops->next(); });
  };
  const Bench first = make_bench(config), second = make_bench(config, 2);
  Trainer a = trainer_of(first), b = trainer_of(second);
  b.load(a.state());
  EXPECT_EQ(a.step().loss, b.step().loss);
}

TEST(Trainer, PhasesAreTold) {
  const Bench run = make_bench(quick());
  std::vector<std::string> phases;
  run.trainer->on_phase([&](std::string_view phase) { phases.emplace_back(phase); });
  (void)run.trainer->step();
  EXPECT_THAT(phases, testing::ElementsAre("fetch", "forward", "backward", "update"));
}

}  // namespace resume_test
