// The step that a CUDA graph can hold against the ordinary one. On the CPU it runs one operation after another, with
// the same arithmetic: everything must be equal bit for bit.
#include "nsa/train/graph_step.hpp"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "nsa/cuda/cuda.hpp"
#include "nsa/tests/model_fixtures.hpp"
#include "nsa/train/trainer.hpp"

namespace {

using namespace nsa::train;
using nsa::CudaGraph;
using nsa::LanguageModel;
using nsa::Precision;
using nsa::TrainConfig;
using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Clipping happens in every step: norms of a model this small are about 1.
TrainConfig quick(CudaGraph cuda_graph = CudaGraph::on) {
  TrainConfig config;
  config.precision = Precision::fp32;
  config.steps = 20;
  config.seq_len = 33;
  config.batch_size = 2;
  config.lr = 3e-3;
  config.grad_clip = 0.1;
  config.cuda_graph = cuda_graph;
  return config;
}

// A model, its trainer, and random tokens: batch 1, 2, ... is the same for every bench.
struct Bench {
  explicit Bench(const TrainConfig& config, const nsa::ModelConfig& model_config = nsa::fixtures::tiny(),
                 at::Device device = at::kCPU, const nsa::OpsProvider& ops = {})
      : model(nsa::fixtures::make_model(model_config)) {
    if (ops) model->runtime->ops = ops;
    model->to(device);
    trainer = std::make_unique<Trainer>(model, config, [config, batch = batch] {
      return nsa::fixtures::bytes({config.batch_size, config.seq_len + 1}, ++*batch);
    });
  }
  LanguageModel model;
  std::shared_ptr<std::uint64_t> batch = std::make_shared<std::uint64_t>(0);
  std::unique_ptr<Trainer> trainer;
};

::testing::AssertionResult same(const StepReport& a, const StepReport& b) {
  const auto text = [](const StepReport& r) {
    return testing::PrintToString(std::make_tuple(r.step, r.loss, r.lr, r.grad_norm, r.tokens, r.stop, r.anomaly));
  };
  return text(a) == text(b) ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << text(a) << text(b);
}

// Weights, moments, counts of updates and masters; all but the facts.
::testing::AssertionResult same(const TrainState& a, const TrainState& b) {
  if (a.tensors.size() != b.tensors.size()) return ::testing::AssertionFailure() << "other tensors";
  for (const auto& [name, tensor] : a.tensors)
    if (!at::equal(tensor.nan_to_num(77), b.tensors.at(name).nan_to_num(77)))
      return ::testing::AssertionFailure() << name << " differs";
  return ::testing::AssertionSuccess();
}

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
  AdamW optimizer(*model, 0.0);
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

// ---- on a GPU -----------------------------------------------------------------------------------------------------

class GraphStepOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device: there are no graphs without one";
  }
  // Widths that our own kernels serve.
  static nsa::ModelConfig model() {
    nsa::ModelConfig config = nsa::fixtures::tiny();
    config.dim = 64;
    config.d_k = config.d_v = 32;
    config.nsa = {.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32};
    return config;
  }
  static TrainConfig train(CudaGraph cuda_graph) {
    TrainConfig config = quick(cuda_graph);
    config.precision = Precision::bf16;
    config.seq_len = 128;
    config.accumulate_grad_batches = 2;
    return config;
  }
  static nsa::Ops kernels(const nsa::Call&) { return nsa::cuda::ops(); }  // by name: routing may refuse them
};

// Eight steps: the warm-up, then the capture and five replays. Where two ordinary runs have the same bits, so must it.
void expect_replays_are_ordinary_steps(const nsa::ModelConfig& model, TrainConfig config, const nsa::OpsProvider& ops) {
  constexpr std::int64_t kSteps = GraphStep::kWarmUp + 5;
  config.cuda_graph = CudaGraph::off;
  const Bench ordinary(config, model, at::kCUDA, ops), repeated(config, model, at::kCUDA, ops);
  config.cuda_graph = CudaGraph::on;
  const Bench graph(config, model, at::kCUDA, ops);
  bool repeats = true;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    const StepReport expected = ordinary.trainer->step(), made = graph.trainer->step();
    repeats = repeats && same(expected, repeated.trainer->step());
    ASSERT_EQ(made.stop, Stop::none) << made.anomaly;
    EXPECT_NEAR(made.loss, expected.loss, 1e-2);
    if (repeats) {
      EXPECT_TRUE(same(made, expected)) << i;
    }
  }
  EXPECT_EQ(graph.trainer->graph_replays(), kSteps - GraphStep::kWarmUp);
  if (repeats) {
    EXPECT_TRUE(same(graph.trainer->state(), ordinary.trainer->state()));
  }
}

TEST_F(GraphStepOnGpu, ReplaysOfOurKernelsAreOrdinarySteps) {
  expect_replays_are_ordinary_steps(model(), train(CudaGraph::on), kernels);
}

TEST_F(GraphStepOnGpu, ReplaysByTheDefaultRouteAreOrdinarySteps) {
  expect_replays_are_ordinary_steps(model(), train(CudaGraph::on), {});
  TrainConfig recomputed = train(CudaGraph::on);
  recomputed.gradient_checkpointing = true;
  expect_replays_are_ordinary_steps(model(), recomputed, {});
}

TEST_F(GraphStepOnGpu, AReplayChangesNothingWhenTheLossIsNotFinite) {
  TrainConfig config = train(CudaGraph::on);
  config.master_weights = false;
  const Bench graph(config, model(), at::kCUDA, kernels);
  for (std::int64_t i = 0; i <= GraphStep::kWarmUp; ++i) ASSERT_EQ(graph.trainer->step().stop, Stop::none);
  const at::Tensor weight = graph.model->head->weight.detach();
  const at::Tensor healthy = weight.clone();
  weight[3][5] = kNan;
  const TrainState before = graph.trainer->state();
  const StepReport report = graph.trainer->step();
  EXPECT_EQ(report.stop, Stop::nonfinite_loss);
  EXPECT_EQ(report.parameter, "head.weight");
  EXPECT_EQ(graph.trainer->graph_replays(), 2);
  EXPECT_TRUE(same(graph.trainer->state(), before));
  weight.copy_(healthy);
  EXPECT_EQ(graph.trainer->step().stop, Stop::none);
  EXPECT_EQ(graph.trainer->graph_replays(), 3);
}

// After a load the next replay trains what was loaded.
TEST_F(GraphStepOnGpu, AReplayGoesOnFromALoadedState) {
  const Bench graph(train(CudaGraph::on), model(), at::kCUDA, kernels),
      ordinary(train(CudaGraph::off), model(), at::kCUDA, kernels);
  for (std::int64_t i = 0; i <= GraphStep::kWarmUp; ++i) {
    (void)graph.trainer->step();
    (void)ordinary.trainer->step();
  }
  const Bench fresh(train(CudaGraph::off), model(), at::kCUDA, kernels);
  graph.trainer->load(fresh.trainer->state());
  ordinary.trainer->load(fresh.trainer->state());
  const StepReport made = graph.trainer->step(), expected = ordinary.trainer->step();
  EXPECT_EQ(graph.trainer->graph_replays(), 2);
  EXPECT_EQ(made.step, 0);
  EXPECT_NEAR(made.loss, expected.loss, 1e-3);
  EXPECT_NEAR(made.grad_norm, expected.grad_norm, 1e-2 * expected.grad_norm);
}

TEST_F(GraphStepOnGpu, AStepThatIsWatchedIsAnOrdinaryOne) {
  const Bench graph(train(CudaGraph::on), model(), at::kCUDA, kernels);
  for (std::int64_t i = 0; i <= GraphStep::kWarmUp; ++i) (void)graph.trainer->step();
  int stages = 0;
  graph.model->runtime->observe = [&](std::string_view, const at::Tensor&) { ++stages; };
  EXPECT_EQ(graph.trainer->step().stop, Stop::none);
  EXPECT_GT(stages, 0);
  EXPECT_EQ(graph.trainer->graph_replays(), 1);
  graph.model->runtime->observe = {};
  EXPECT_EQ(graph.trainer->step().stop, Stop::none);
  EXPECT_EQ(graph.trainer->graph_replays(), 2);
}

TEST_F(GraphStepOnGpu, AStepThatWaitsForTheGpuIsRefusedWithItsReason) {
  const auto waiting = [](const nsa::Call& call) {
    nsa::Ops table = kernels(call);
    table.replace(&nsa::Ops::combine, [combine = table.combine](const nsa::CombineArgs& args) {
      EXPECT_TRUE(args.gates.isfinite().all().item<bool>());
      return combine(args);
    });
    return table;
  };
  const Bench graph(train(CudaGraph::on), model(), at::kCUDA, waiting);
  for (std::int64_t i = 0; i + 1 < GraphStep::kWarmUp; ++i) ASSERT_EQ(graph.trainer->step().stop, Stop::none);
  const TrainState before = graph.trainer->state();
  try {
    (void)graph.trainer->step();
    ADD_FAILURE() << "not refused";
  } catch (const nsa::Unsupported& refused) {
    EXPECT_THAT(refused.what(), HasSubstr("waits for the GPU"));
  }
  EXPECT_TRUE(same(graph.trainer->state(), before));
}

// The same run with CudaGraph::automatic goes on one operation after another, with the same bits, and says why.
TEST_F(GraphStepOnGpu, AStepThatWaitsForTheGpuIsAnOrdinaryOneByDefault) {
  const auto waiting = [](const nsa::Call& call) {
    nsa::Ops table = kernels(call);
    table.replace(&nsa::Ops::combine, [combine = table.combine](const nsa::CombineArgs& args) {
      EXPECT_TRUE(args.gates.isfinite().all().item<bool>());
      return combine(args);
    });
    return table;
  };
  const Bench automatic(train(CudaGraph::automatic), model(), at::kCUDA, waiting),
      ordinary(train(CudaGraph::off), model(), at::kCUDA, waiting);
  EXPECT_TRUE(automatic.trainer->by_graph());
  for (std::int64_t i = 0; i < GraphStep::kWarmUp + 2; ++i) {
    const StepReport made = automatic.trainer->step(), expected = ordinary.trainer->step();
    EXPECT_EQ(made.stop, Stop::none);
    EXPECT_NEAR(made.loss, expected.loss, 1e-3);
  }
  EXPECT_FALSE(automatic.trainer->by_graph());
  EXPECT_EQ(automatic.trainer->steps_made(), GraphStep::kWarmUp + 2);
  EXPECT_THAT(automatic.trainer->why_not_captured(), HasSubstr("waits for the GPU"));
}

// What a capture cannot hold although nothing waits.
TEST_F(GraphStepOnGpu, ACaptureThatFailsLeavesOrdinarySteps) {
  const auto failing = [](const nsa::Call& call) {
    nsa::Ops table = kernels(call);
    table.replace(&nsa::Ops::combine, [combine = table.combine](const nsa::CombineArgs& args) {
      const bool capturing = c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
      TORCH_CHECK(!capturing, "this op refuses to be captured");
      return combine(args);
    });
    return table;
  };
  const Bench automatic(train(CudaGraph::automatic), model(), at::kCUDA, failing),
      ordinary(train(CudaGraph::off), model(), at::kCUDA, failing);
  for (std::int64_t i = 0; i < GraphStep::kWarmUp + 2; ++i)
    EXPECT_NEAR(automatic.trainer->step().loss, ordinary.trainer->step().loss, 1e-3) << i;
  EXPECT_THAT(automatic.trainer->why_not_captured(), HasSubstr("cannot be captured: this op refuses"));
}

// A graph that was given back is captured anew, and it is the same run.
TEST_F(GraphStepOnGpu, AReleasedGraphIsCapturedAnew) {
  const auto model_config = model();
  auto lm = nsa::fixtures::make_model(model_config);
  lm->runtime->ops = kernels;
  lm->to(at::kCUDA, at::kBFloat16);
  TrainConfig config = train(CudaGraph::on);
  AdamW optimizer(*lm, 0.0);
  GraphStep step(lm, config, optimizer);
  double loss = 1e9;
  for (int i = 0; i < 8; ++i) {
    const std::vector<Batch> batches(2, Batch{nsa::fixtures::bytes({config.batch_size, config.seq_len + 1}, 1), {}});
    if (i == 5) step.release();
    const double now = step.run(batches, 1e-3, [](std::string_view) {})[0].item<double>();
    EXPECT_LT(now, loss) << i;  // the same batch again and again
    loss = now;
  }
  EXPECT_EQ(step.replays(), 5);
}

}  // namespace
