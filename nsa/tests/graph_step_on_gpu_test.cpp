// The step as a CUDA graph: replays are ordinary steps, and what cannot be captured is one. Needs a GPU.
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "nsa/cuda/cuda.hpp"
#include "nsa/parallel/store_server.hpp"
#include "nsa/tests/graph_steps.hpp"
#include "nsa/train/graph_step.hpp"

namespace nsa::train::graph_steps {
namespace {

using testing::HasSubstr;

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
  static nsa::Ops waiting(const nsa::Call& call) {                        // for the GPU, in every layer
    nsa::Ops table = kernels(call);
    table.replace(&nsa::Ops::combine, [combine = table.combine](const nsa::CombineArgs& args) {
      EXPECT_TRUE(args.gates.isfinite().all().item<bool>());
      return combine(args);
    });
    return table;
  }
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
  weight[3][5] = std::numeric_limits<double>::quiet_NaN();
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
  AdamW optimizer(*lm, 0.0, /*master_weights=*/true, /*runtime=*/nullptr);
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

// A group of one rank, whose sums are captured bucket by bucket beside backward: the steps of no group, and a graph
// that leaves room for an ordinary step.
TEST_F(GraphStepOnGpu, AGroupOfOneCapturesItsSumsAndMakesTheSameSteps) {
  const nsa::parallel::StoreServer store;
  nsa::parallel::GroupOptions options;
  options.world.address = "127.0.0.1";
  options.world.port = store.port();
  options.world.store_is_served = true;
  options.device = at::Device(at::kCUDA, 0);
  const auto group = nsa::parallel::Group::join(options);
  const TrainConfig config = train(CudaGraph::on);
  const auto losses = [&](const std::shared_ptr<nsa::parallel::Group>& with) {
    auto lm = nsa::fixtures::make_model(model());
    lm->runtime->ops = kernels;
    lm->to(at::kCUDA, at::kBFloat16);
    AdamW optimizer(*lm, 0.0, /*master_weights=*/true, /*runtime=*/nullptr);
    GraphStep step(lm, config, optimizer, with);
    std::vector<double> all;
    for (std::uint64_t i = 0; i < 9; ++i) {
      const std::vector<Batch> batches(2, Batch{nsa::fixtures::bytes({config.batch_size, config.seq_len + 1}, i), {}});
      if (i == 6) step.release();
      all.push_back(step.run(batches, 1e-3, [](std::string_view) {})[0].item<double>());
      EXPECT_TRUE(step.leaves_room());
      EXPECT_EQ(with == nullptr || step.own_was_finite(), true);
    }
    EXPECT_EQ(step.replays(), 6);
    if (with != nullptr) {  // what is own is still there when a replay has ended
      const at::NoGradGuard no_grad;
      lm->parameters().back().fill_(std::numeric_limits<double>::quiet_NaN());
      const std::vector<Batch> batches(2, Batch{nsa::fixtures::bytes({config.batch_size, config.seq_len + 1}, 9), {}});
      EXPECT_FALSE(std::isfinite(step.run(batches, 1e-3, [](std::string_view) {})[0].item<double>()));
      EXPECT_FALSE(step.own_was_finite());
    }
    return all;
  };
  ASSERT_EQ(::setenv("NPROC_SUM_BUCKET_KB", "16", /*overwrite=*/1), 0);
  const auto alone = losses(nullptr), summed = losses(group);
  ASSERT_EQ(::unsetenv("NPROC_SUM_BUCKET_KB"), 0);
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(summed[i], alone[i], 1e-2) << i;
}

}  // namespace
}  // namespace nsa::train::graph_steps
