#include "nsa/sdpa/rows.hpp"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "nsa/sdpa/sdpa.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa::sdpa {
namespace {

using fixtures::Inputs;

bool cudnn_is_on() { return at::globalContext().userEnabledCuDNNSDP(); }

// Both settings that a caller may have made, put back at the end.
class WithoutCudnnTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { at::globalContext().setSDPUseCuDNN(GetParam()); }
  void TearDown() override { at::globalContext().setSDPUseCuDNN(before_); }

 private:
  bool before_ = cudnn_is_on();
};

TEST_P(WithoutCudnnTest, IsOffWhileItLivesAndRestored) {
  {
    const WithoutCudnn outer;
    EXPECT_FALSE(cudnn_is_on());
    {
      const WithoutCudnn inner;
      EXPECT_FALSE(cudnn_is_on());
    }
    EXPECT_FALSE(cudnn_is_on());
  }
  EXPECT_EQ(cudnn_is_on(), GetParam());
}

TEST_P(WithoutCudnnTest, IsRestoredWhenAnExceptionFlies) {
  EXPECT_THROW(
      {
        const WithoutCudnn guard;
        throw std::runtime_error("out of memory");
      },
      std::runtime_error);
  EXPECT_EQ(cudnn_is_on(), GetParam());

  // And through the call itself: widths of q and k that do not meet.
  const auto q = at::zeros({1, 1, 4, 8}), k = at::zeros({1, 1, 4, 7}), mask = at::ones({4, 4}, at::kBool);
  EXPECT_ANY_THROW(static_cast<void>(attend(q, k, k, mask)));
  EXPECT_EQ(cudnn_is_on(), GetParam());
}

TEST_P(WithoutCudnnTest, IsRestoredAfterTheLastOfManyThreads) {
  std::atomic<int> seen_on = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 2000; ++j) {
        const WithoutCudnn guard;
        seen_on += cudnn_is_on() ? 1 : 0;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(seen_on, 0);
  EXPECT_EQ(cudnn_is_on(), GetParam());
}

// Whether cuDNN was on at each call of ATen's attention.
thread_local std::vector<bool>* attention_calls = nullptr;

TEST_P(WithoutCudnnTest, EveryWayOfTheBackendCallsAttentionWithoutIt) {
  Inputs in({.S = 40, .G = 2, .h = 2}, 5);
  const auto blocks = in.blocks();
  in.require_gradients();
  std::vector<bool> calls;
  attention_calls = &calls;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
        if (std::string_view(fn.name()) == "aten::scaled_dot_product_attention")
          attention_calls->push_back(cudnn_is_on());
        return nullptr;
      }));
  const std::vector<at::Tensor> outputs = {attend_window(in.window()).o,
                                           attend_compressed(in.compressed(compress(in.compress()))).o,
                                           attend_selected(in.selected(blocks), Selection::packed_safe).o,
                                           attend_selected(in.selected(blocks), Selection::masked).o};
  {
    const at::NoGradGuard no_grad;
    static_cast<void>(attend_selected(in.selected(blocks), Selection::packed));
  }
  at::removeCallback(handle);
  EXPECT_EQ(calls, std::vector<bool>(5, false));
  EXPECT_EQ(cudnn_is_on(), GetParam());
  for (const auto& o : outputs) EXPECT_TRUE(fixtures::gradients(o, in, 7)[0].isfinite().all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Rows, WithoutCudnnTest, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "FoundOn" : "FoundOff"); });

TEST(Attend, RefusesAMaskThatATensKernelCannotReckon) {
  const auto rows = at::zeros({1}).expand({1, 1, 65536, 8}), keys = at::zeros({1}).expand({1, 1, 32768, 8});
  const auto mask = at::ones({1}, at::kBool).expand({65536, 32768});
  const auto message = fixtures::message_of([&] { static_cast<void>(attend(rows, keys, keys, mask)); });
  EXPECT_THAT(message, ::testing::HasSubstr("65536 queries to 32768 keys"));
  EXPECT_THAT(message, ::testing::HasSubstr("at most 2147483647"));
}

}  // namespace
}  // namespace nsa::sdpa
