#include "suites/probes/stage_clock.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <thread>

namespace suites::probes {
namespace {

using namespace std::chrono_literals;

void rest(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

// x * 2, which takes a while on the way back.
struct SlowBackward : torch::autograd::Function<SlowBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    rest(40ms);
    return {gradients[0] * 2};
  }
};

const StageTime* find(const PassTimes& times, const std::string& stage) {
  for (const StageTime& row : times.stages) {
    if (row.stage == stage) return &row;
  }
  return nullptr;
}

TEST(StageClock, NamesOfObservedStages) {
  EXPECT_EQ(stage_name("layers.11.attention.sel.o"), "attend_selected");
  EXPECT_EQ(stage_name("layers.0.attention.blocks"), "select");
  EXPECT_EQ(stage_name("layers.0.attention"), "output_projection");
  EXPECT_EQ(stage_name("layers.7"), "residual");
  EXPECT_EQ(stage_name("layers.7.mlp"), "mlp");
  EXPECT_EQ(stage_name("logits"), "head");
  EXPECT_EQ(stage_name("embedding"), "embedding");
  EXPECT_EQ(stage_name("layers.2.something.new"), "something.new");
}

TEST(StageClock, AnIntervalBelongsToTheStageThatEndsItForwardAndBeginsItBackward) {
  StageClock clock(at::kCPU);
  const at::Tensor x = at::ones({4}).requires_grad_();
  clock.begin();
  rest(20ms);
  const at::Tensor a = SlowBackward::apply(x);
  clock.observe("layers.0.attention.sel.o", a);
  const at::Tensor b = a * 3;
  clock.observe("layers.0.mlp", b);
  rest(10ms);
  const at::Tensor loss = b.sum();
  clock.observe("loss", loss);
  clock.begin_backward();
  loss.backward();
  const PassTimes times = clock.end();

  ASSERT_NE(find(times, "attend_selected"), nullptr);
  EXPECT_GE(find(times, "attend_selected")->forward_s, 0.020);
  EXPECT_GE(find(times, "loss")->forward_s, 0.010);
  EXPECT_GE(find(times, "attend_selected")->backward_s, 0.040) << "the slow backward made its output";
  EXPECT_LT(find(times, "mlp")->backward_s, 0.035);
  double forward = 0, backward = 0;
  for (const StageTime& row : times.stages) {
    forward += row.forward_s;
    backward += row.backward_s;
  }
  EXPECT_NEAR(forward, times.forward_s, 1e-9) << "every interval belongs to a stage";
  EXPECT_NEAR(backward, times.backward_s, 1e-9);
}

TEST(StageClock, LayersAddUpAndTheNextPassBeginsAnew) {
  StageClock clock(at::kCPU);
  for (int pass = 0; pass < 2; ++pass) {
    clock.begin();
    for (const char* name : {"layers.0.mlp", "layers.1.mlp"}) {
      rest(5ms);
      clock.observe(name, at::ones({1}));
    }
    const PassTimes times = clock.end();
    ASSERT_EQ(times.stages.size(), 1U);
    EXPECT_GE(times.stages[0].forward_s, 0.010);
    EXPECT_LT(times.stages[0].forward_s, 2) << "not the time since the first pass";
    EXPECT_EQ(times.backward_s, 0);
  }
}

TEST(StageClock, AHookThatOutlivesItsPassIsHarmless) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  at::Tensor loss;
  {
    StageClock clock(at::kCPU);
    clock.begin();
    loss = x * 2;
    clock.observe("logits", loss);
    (void)clock.end();
  }
  EXPECT_NO_THROW(loss.sum().backward());
}

}  // namespace
}  // namespace suites::probes
