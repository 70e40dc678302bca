// When tensors are looked at. On a GPU, and on the processor where the kernel is linked with its emulation;
// elsewhere nothing waits.
#include "suites/probes/maxima.hpp"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include <limits>

#include "nsa/kernels/params.hpp"
#include "suites/probes/row_maxima_kernel.hpp"

namespace suites::probes {
namespace maxima_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Device device() { return at::hasCUDA() ? at::kCUDA : at::kCPU; }
at::Tensor numbers(std::initializer_list<double> values) {
  return at::tensor(std::vector<double>(values), at::TensorOptions(at::kFloat)).to(device());
}
std::vector<double> values_of(const Maxima& maxima, Maxima::Place place) {
  const auto [first, count] = maxima.of(place);
  const at::Tensor own = maxima.all().narrow(0, first, count).to(at::kCPU, at::kDouble).contiguous();
  return {own.const_data_ptr<double>(), own.const_data_ptr<double>() + count};
}

TEST(Maxima, GivesEachTensorItsOwn) {
  for (const Look look : {Look::in_batches, Look::at_once}) {
    Maxima maxima(look);
    EXPECT_FALSE(maxima.all().defined());
    const auto a = maxima.add("a", {numbers({1, -3, 2, 0}).view({2, 2}), 0});
    const auto b = maxima.add("b", {numbers({-5})});
    const auto c = maxima.add("c", {numbers({-1, 7, -2, -3}).view({2, 2}), 1, /*positive=*/true});
    maxima.look();
    const auto d = maxima.add("d", {numbers({4, 6}).to(at::kDouble).view({2, 1}), 0});
    maxima.look();
    EXPECT_EQ(values_of(maxima, a), (std::vector<double>{3, 2}));
    EXPECT_EQ(values_of(maxima, b), (std::vector<double>{5}));
    EXPECT_EQ(values_of(maxima, c), (std::vector<double>{0, 7}));
    EXPECT_EQ(values_of(maxima, d), (std::vector<double>{4, 6}));
    EXPECT_EQ(maxima.count(), 7);
    maxima.clear();
    EXPECT_EQ(maxima.count(), 0);
    EXPECT_FALSE(maxima.all().defined());
  }
}

TEST(Maxima, KeepsEachNumberOfItsTypeAndOthersNextToIt) {
  Maxima maxima(Look::in_batches);
  const auto small = maxima.add("", {at::full({1}, 1e-300, at::TensorOptions(device()).dtype(at::kDouble))});
  const auto half = maxima.add("", {numbers({0.5}).to(at::kHalf)});
  maxima.look();
  EXPECT_EQ(values_of(maxima, small), (std::vector<double>{1e-300}));
  EXPECT_EQ(values_of(maxima, half), (std::vector<double>{0.5}));
}

class WaitingMaxima : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() && !nsa::kernels::is_emulated())
      GTEST_SKIP() << "nothing waits on a CPU; the emulation is tested";
  }
};

TEST_F(WaitingMaxima, AreLookedAtWhenALaunchTakesNoMore) {
  Maxima maxima(Look::in_batches);
  for (int i = 0; i + 1 < RowMaxima::kMost; ++i) {
    (void)maxima.add("", {numbers({1})});
    EXPECT_TRUE(maxima.waits());
  }
  (void)maxima.add("", {numbers({2})});
  EXPECT_FALSE(maxima.waits());
  Maxima at_once(Look::at_once);
  (void)at_once.add("", {numbers({1})});
  EXPECT_FALSE(at_once.waits());
}

TEST_F(WaitingMaxima, KeepNoMoreBytesThanTheyMay) {
  Maxima maxima(Look::in_batches, /*most_kept=*/1024);
  const auto of = [](std::int64_t numbers) {
    return at::ones({numbers}, at::TensorOptions(device()).dtype(at::kHalf));
  };
  (void)maxima.add("", {of(128)});
  EXPECT_TRUE(maxima.waits());
  (void)maxima.add("", {of(512)});
  EXPECT_FALSE(maxima.waits());
}

// What is kept is the memory under a tensor, not what is looked at of it.
TEST_F(WaitingMaxima, KeepLittleMemory) {
  Maxima maxima(Look::in_batches);
  const at::Tensor part = at::zeros({15 << 20}, at::TensorOptions(device()).dtype(at::kByte)).view(at::kFloat);
  (void)maxima.add("", {part.narrow(0, 0, 4)});
  (void)maxima.add("", {part.narrow(0, 4, 4)});
  EXPECT_EQ(part.storage().use_count(), 3U);
  (void)maxima.add("", {part.narrow(0, 8, 4)});
  EXPECT_FALSE(maxima.waits());
  EXPECT_EQ(part.storage().use_count(), 1U);
}

TEST_F(WaitingMaxima, AreNoAnswerWhenSomebodyWroteIntoThem) {
  const auto write_into = [](Look look, const at::Tensor& t, const at::Tensor& alias) {
    Maxima maxima(look);
    (void)maxima.add("first", {numbers({1})});
    const auto place = maxima.add("second", {t});
    alias.zero_();
    maxima.look();
    return values_of(maxima, place);
  };
  const at::Tensor t = numbers({1, 2, kNan});
  EXPECT_TRUE(std::isnan(write_into(Look::at_once, t, t).front()));
  for (const at::Tensor& fresh : {numbers({1, 2, kNan}), numbers({1, 2, 3})}) {
    try {
      (void)write_into(Look::in_batches, fresh, fresh.view({3, 1}).narrow(0, 1, 1));
      ADD_FAILURE() << "an answer";
    } catch (const StageOverwritten& error) {
      EXPECT_STREQ(error.what(), "second was written in place before the watch had looked at it");
    }
  }
  const at::Tensor before = numbers({3});
  before.zero_();
  EXPECT_EQ(write_into(Look::in_batches, before, numbers({4})), (std::vector<double>{0}));
}

TEST_F(WaitingMaxima, OfAnotherStreamAreLookedAtThere) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device: there is one stream";
  Maxima maxima(Look::in_batches);
  Maxima::Place slow;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    at::Tensor x = at::full({2048, 2048}, 1.0 / 2048, at::TensorOptions(at::kCUDA));
    for (int i = 0; i < 200; ++i) x = x.matmul(at::full_like(x, 1.0 / 2048));
    slow = maxima.add("", {x.narrow(0, 0, 1) * 2048, -1});
  }
  maxima.look();  // from the default stream, which does not wait for others
  EXPECT_NEAR(values_of(maxima, slow).front(), 1, 1e-2);
}

TEST_F(WaitingMaxima, AreRefusedOutsideTheirCapture) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device: there are no graphs without one";
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  const at::Tensor x = numbers({1, 2, 3});
  Maxima maxima(Look::in_batches), at_once(Look::at_once);
  (void)at_once.add("", {x});
  at_once.clear();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  (void)maxima.add("", {x});
  const auto place = at_once.add("", {x});
  graph.capture_end();
  EXPECT_THROW(maxima.look(), std::logic_error);
  maxima.clear();
  graph.replay();
  EXPECT_EQ(values_of(at_once, place), (std::vector<double>{3}));
  x.fill_(-4);
  graph.replay();
  EXPECT_EQ(values_of(at_once, place), (std::vector<double>{4}));
}

}  // namespace maxima_test
}  // namespace suites::probes
