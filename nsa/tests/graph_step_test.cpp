// The step that a CUDA graph can hold against the ordinary one. On the CPU it runs one operation after another, with
// the same arithmetic: everything must be equal bit for bit.
#include "nsa/train/graph_step.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nsa/tests/graph_steps.hpp"

namespace nsa::train::graph_steps {
namespace {

using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_the_ordinary_steps(TrainConfig config) {
  const Bench graph(config);
  config.cuda_graph = CudaGraph::off;
  const Bench ordinary(config);
  double largest_norm = 0;
  for (int i = 0; i < 5; ++i) {
    const StepReport made = graph.trainer->step();
    ASSERT_EQ(made.stop, Stop::none) << made.anomaly;
    ASSERT_TRUE(same(made, ordinary.trainer->step()));
    largest_norm = std::max(largest_norm, made.grad_norm);
  }
  EXPECT_GT(largest_norm, 0.1);  // some step was clipped, unless the bound was lifted
  EXPECT_TRUE(same(graph.trainer->state(), ordinary.trainer->state()));
  for (const auto& parameter : graph.model->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(GraphStep, IsTheOrdinaryStep) {
  for (const double clip : {0.1, 1e6}) {
    TrainConfig config = quick();
    config.grad_clip = clip;
    expect_the_ordinary_steps(config);
  }
}

TEST(GraphStep, IsTheOrdinaryStepWithAccumulation) {
  TrainConfig config = quick();
  config.accumulate_grad_batches = 3;
  expect_the_ordinary_steps(config);
}

TEST(GraphStep, IsTheOrdinaryStepInBf16) {
  for (const bool masters : {true, false}) {
    TrainConfig config = quick();
    config.precision = Precision::bf16;
    config.master_weights = masters;
    expect_the_ordinary_steps(config);
  }
}

TEST(GraphStep, IsTheOrdinaryStepWithRecomputation) {
  TrainConfig config = quick();
  config.gradient_checkpointing = true;
  expect_the_ordinary_steps(config);
}

// A hook spoils a gradient for one step. Nothing may change, and the steps after it are those of a run that never met
// it (but for the batch that was used up).
TEST(GraphStep, ANonfiniteGradientChangesNothing) {
  for (const double bad : {kNan, kInfinity})
    for (const auto precision : {Precision::fp32, Precision::bf16}) {
      TrainConfig config = quick();
      config.precision = precision;
      const Bench graph(config);
      config.cuda_graph = CudaGraph::off;
      const Bench ordinary(config);
      const auto both = [&] { return std::pair(graph.trainer->step(), ordinary.trainer->step()); };
      (void)both();
      const TrainState before = graph.trainer->state();
      for (const Bench* bench : {&graph, &ordinary}) {
        const auto named = bench->model->named_parameters();
        const auto victim = named[named.size() / 2];
        const auto hook = victim.value().register_hook([bad](const torch::Tensor& gradient) {
          torch::Tensor spoilt = gradient.clone();
          spoilt.view(-1)[0] = bad;
          return spoilt;
        });
        const StepReport report = bench->trainer->step();
        EXPECT_EQ(report.stop, Stop::nonfinite_gradient);
        EXPECT_EQ(report.anomaly, victim.key());
        EXPECT_EQ(report.parameter, victim.key());
        EXPECT_TRUE(std::isfinite(report.loss));
        victim.value().remove_hook(hook);
      }
      EXPECT_TRUE(same(graph.trainer->state(), before));
      EXPECT_EQ(graph.trainer->steps_made(), 1);
      const auto [again, expected] = both();
      EXPECT_EQ(again.stop, Stop::none);
      EXPECT_TRUE(same(again, expected));
      EXPECT_TRUE(same(graph.trainer->state(), ordinary.trainer->state()));
      EXPECT_FALSE(same(graph.trainer->state(), before));
    }
}

TEST(GraphStep, ANonfiniteLossChangesNothing) {
  const Bench graph(quick());
  (void)graph.trainer->step();
  const at::Tensor weight = graph.model->head->weight.detach();
  const at::Tensor healthy = weight.clone();
  weight[3][5] = kNan;
  const TrainState before = graph.trainer->state();
  const StepReport report = graph.trainer->step();
  EXPECT_EQ(report.stop, Stop::nonfinite_loss);
  EXPECT_THAT(report.anomaly, HasSubstr("NaN"));
  EXPECT_EQ(report.parameter, "head.weight");
  EXPECT_TRUE(same(graph.trainer->state(), before));
  weight.copy_(healthy);
  EXPECT_EQ(graph.trainer->step().stop, Stop::none);
}

// From the graph's trainer to the ordinary one and back: it is one and the same run.
TEST(GraphStep, StatesGoBothWaysAndNoTensorMoves) {
  TrainConfig config = quick();
  config.precision = Precision::bf16;
  const Bench whole(config);
  std::vector<StepReport> expected;
  for (int i = 0; i < 6; ++i) expected.push_back(whole.trainer->step());

  TrainConfig without = config;
  without.cuda_graph = CudaGraph::off;
  const Bench first(config), second(without), third(config);
  (void)third.trainer->step();  // from here on a graph would hold its tensors
  std::vector<const void*> places;
  for (const auto& parameter : third.model->parameters()) places.push_back(parameter.const_data_ptr());
  const std::vector<const Bench*> in_turn = {&first, &second, &third};
  for (std::size_t i = 0; i < in_turn.size(); ++i) {
    if (i > 0) in_turn[i]->trainer->load(in_turn[i - 1]->trainer->state());
    *in_turn[i]->batch = 2 * i;
    for (std::size_t step = 2 * i; step < 2 * i + 2; ++step)
      EXPECT_TRUE(same(in_turn[i]->trainer->step(), expected[step])) << step;
  }
  EXPECT_TRUE(same(third.trainer->state(), whole.trainer->state()));
  for (std::size_t i = 0; i < places.size(); ++i)
    EXPECT_EQ(third.model->parameters()[i].const_data_ptr(), places[i]) << i;
}

TEST(GraphStep, ServesTheShapeOfTheConfiguration) {
  TrainConfig config = quick();
  config.accumulate_grad_batches = 2;
  const auto model = nsa::fixtures::make_model(nsa::fixtures::tiny());
  AdamW optimizer(*model, 0.0, /*master_weights=*/true, model->runtime);
  const GraphStep step(model, config, optimizer);
  const Batch whole{nsa::fixtures::bytes({2, 34}, 1), {}}, fewer{nsa::fixtures::bytes({1, 34}, 1), {}},
      shorter{nsa::fixtures::bytes({1, 20}, 1), {}};
  Batch packed = whole;
  packed.cu_seqlens = nsa::fixtures::cu({0, 34});
  EXPECT_TRUE(step.serves({whole, whole}));
  EXPECT_FALSE(step.serves({whole}));
  EXPECT_FALSE(step.serves({whole, fewer}));
  EXPECT_FALSE(step.serves({shorter, whole}));
  EXPECT_FALSE(step.serves({whole, packed}));
}

// The last batches of a text are smaller: those steps are ordinary ones.
TEST(GraphStep, OtherBatchesAreTrainedOnAllTheSame) {
  const auto run = [](CudaGraph cuda_graph) {
    const auto model = nsa::fixtures::make_model(nsa::fixtures::tiny());
    Trainer trainer(model, quick(cuda_graph), [rows = std::int64_t{4}]() mutable {
      --rows;
      return rows > 0 ? nsa::fixtures::bytes({std::min<std::int64_t>(rows, 2), 34}, 5) : at::Tensor();
    });
    return std::pair(trainer.run(), trainer.state());
  };
  const auto [reports, state] = run(CudaGraph::on);
  const auto [expected, expected_state] = run(CudaGraph::off);
  ASSERT_EQ(reports.size(), 4U);
  EXPECT_EQ(reports[2].tokens, 33);
  EXPECT_EQ(reports[3].stop, Stop::end_of_data);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(same(reports[i], expected[i])) << i;
  EXPECT_TRUE(same(state, expected_state));
}

TEST(GraphStep, WhatAGraphCannotHoldIsRefused) {
  const auto refusal = [](const TrainConfig& config, const nsa::Environment& environment = {}) -> std::string {
    const auto model = nsa::fixtures::make_model(nsa::fixtures::tiny(), environment);
    try {
      const Trainer trainer(model, config, [] { return torch::Tensor(); });
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(quick()), "");
  TrainConfig packed = quick(), wide = quick();
  packed.packed = true;
  wide.precision = Precision::fp64;
  EXPECT_THAT(refusal(packed), HasSubstr("train.cuda_graph: train.packed lays out documents anew"));
  EXPECT_THAT(refusal(wide), HasSubstr("too coarse for fp64"));
  EXPECT_THAT(refusal(quick(), {{"NSA_DETECT_ANOMALY", "1"}}), HasSubstr("NSA_DETECT_ANOMALY"));
  EXPECT_THAT(refusal(quick(), {{"NSA_STRICT_ASSERTS", "1"}}), HasSubstr("NSA_STRICT_ASSERTS"));
  packed.cuda_graph = wide.cuda_graph = CudaGraph::off;
  EXPECT_EQ(refusal(packed) + refusal(wide) + refusal(quick(CudaGraph::off), {{"NSA_STRICT_ASSERTS", "1"}}), "");
}

TEST(GraphStep, ByDefaultAGpuCapturesWhatItCanAndNothingIsRefused) {
  TrainConfig config = quick(CudaGraph::automatic), packed = config, on = quick();
  packed.packed = true;
  const auto flags = nsa::resolve({}), anomaly = nsa::resolve({{"NSA_DETECT_ANOMALY", "1"}});
  EXPECT_TRUE(goes_by_graph(config, flags, at::kCUDA));
  EXPECT_FALSE(goes_by_graph(config, flags, at::kCPU));
  EXPECT_FALSE(goes_by_graph(packed, flags, at::kCUDA));
  EXPECT_FALSE(goes_by_graph(config, anomaly, at::kCUDA));
  EXPECT_TRUE(goes_by_graph(on, flags, at::kCPU));
  EXPECT_FALSE(goes_by_graph(quick(CudaGraph::off), flags, at::kCUDA));
  const Bench bench(config);
  EXPECT_FALSE(bench.trainer->by_graph());
  EXPECT_EQ(bench.trainer->why_not_captured(), "");
  EXPECT_FALSE(bench.trainer->step().replayed);
}

}  // namespace
}  // namespace nsa::train::graph_steps
