#include "suites/implementation/device_arena.hpp"

#include <ATen/ATen.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>

#include "suites/implementation/tests/support.hpp"
#include "suites/oracle/compare.hpp"

namespace suites::implementation::tests {
namespace device_arena_test {

using testing::HasSubstr;

constexpr std::int64_t kGrain = DeviceArena::kGrain;

// The arena over files, and over a GPU where there is one.
class DeviceArenaTest : public PythonTest, public testing::WithParamInterface<at::DeviceType> {
 protected:
  void SetUp() override {
    if (!is_file() && !at::hasCUDA()) GTEST_SKIP() << "no GPU";
    arena.emplace(is_file() ? files.memory() : cuda_memory());
    device = is_file() ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
  }
  [[nodiscard]] static bool is_file() { return GetParam() == at::kCPU; }

  FileMemory files{folder};
  std::optional<DeviceArena> arena;
  at::Device device = at::kCPU;
};
INSTANTIATE_TEST_SUITE_P(Memory, DeviceArenaTest, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& tested) { return tested.param == at::kCPU ? "file" : "gpu"; });

TEST_P(DeviceArenaTest, GivesBackTheBits) {
  arena->reserve(device, kGrain);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kInt}) {
    at::Tensor tensor = (at::randn({3, 5, 2}) * 100).to(dtype);
    if (dtype != at::kInt) tensor.view(-1).slice(0, 0, 2).copy_(at::tensor({std::nan("7"), -INFINITY}));
    tensor = tensor.to(device);
    const Place place = arena->put(tensor);
    EXPECT_TRUE(place.on_device);
    const at::Tensor back = arena->take(place);
    EXPECT_TRUE(oracle::same_bits(back, tensor)) << c10::toString(dtype);
    EXPECT_EQ(back.device(), device);
  }
}

TEST_P(DeviceArenaTest, TakesAnyStridesAndEmptyTensors) {
  arena->reserve(device, kGrain);
  const at::Tensor tensor = at::arange(24, at::kFloat).view({2, 3, 4}).to(device);
  for (const at::Tensor& view :
       {tensor.transpose(0, 2), tensor.slice(1, 1, 3), tensor.select(0, 1).expand({5, 3, 4}), tensor.flip(0),
        at::tensor(3.0F).to(device), at::empty({2, 0, 4}).to(device), tensor.clone().requires_grad_(), tensor.cpu()}) {
    const at::Tensor back = arena->take(arena->put(view));
    EXPECT_TRUE(oracle::same_bits(back, view.detach()));
    EXPECT_FALSE(back.requires_grad());
  }
}

TEST_P(DeviceArenaTest, WhatIsTakenIsItsOwn) {
  arena->reserve(device, 4 * sizeof(float));
  const Place place = arena->put(at::ones({4}));
  const at::Tensor taken = arena->take(place);
  arena->reset();
  (void)arena->put(at::zeros({4}));
  EXPECT_TRUE(at::equal(taken.cpu(), at::ones({4})));
  EXPECT_TRUE(at::equal(arena->take(place).cpu(), at::zeros({4})));
}

TEST_P(DeviceArenaTest, PlacesAreMultiplesOf256AndNeedRoom) {
  EXPECT_EQ(arena->size(), 0);
  EXPECT_TRUE(arena->reserve(device, kGrain));
  EXPECT_EQ(arena->put(at::ones({1})).at, 0);
  EXPECT_EQ(arena->put(at::ones({65})).at, 256);
  EXPECT_EQ(arena->room(), 768);
  EXPECT_THROW((void)arena->put(at::ones({kGrain / 4 - 100})), std::logic_error);
  EXPECT_EQ(arena->room(), 768);
  EXPECT_EQ(arena->put(at::ones({kGrain / 4 - 192})).at, 768);
  EXPECT_EQ(arena->put(at::ones({0})).at, kGrain);  // at the very end
  EXPECT_EQ(arena->take({at::kFloat, {0}, kGrain, true}).numel(), 0);
  EXPECT_FALSE(arena->reserve(device, kGrain));
  EXPECT_EQ(arena->room(), 0);
}

TEST_P(DeviceArenaTest, GrowsByBecomingOtherMemory) {
  EXPECT_TRUE(arena->reserve(device, 1));
  EXPECT_EQ(arena->size(), kGrain);
  const Json first = arena->opened_by();
  EXPECT_EQ(first["size"], kGrain);
  EXPECT_FALSE(arena->reserve(device, kGrain));
  EXPECT_TRUE(arena->reserve(device, kGrain + 1));
  EXPECT_EQ(arena->size(), 2 * kGrain);  // twice at least, so that it grows less often
  EXPECT_NE(arena->opened_by()["handle"], first["handle"]);
  arena->forget_old();
  EXPECT_TRUE(arena->reserve(device, 16 * kGrain - 1));
  EXPECT_EQ(arena->size(), 16 * kGrain);
  const at::Tensor large = at::randn({4 * kGrain}).to(device);
  EXPECT_TRUE(oracle::same_bits(arena->take(arena->put(large)), large));
  arena->release();
  EXPECT_EQ(arena->size(), 0);
  EXPECT_TRUE(arena->reserve(device, 1));
  EXPECT_EQ(arena->size(), kGrain);
}

TEST_P(DeviceArenaTest, PlacesOutsideAreRefused) {
  arena->reserve(device, kGrain);
  const auto refusal = [&](std::vector<std::int64_t> shape, std::int64_t at) {
    const auto error = error_of([&] { (void)arena->take({at::kDouble, std::move(shape), at, true}); });
    EXPECT_EQ(error.kind, "protocol");
    return error.message;
  };
  EXPECT_TRUE(arena->take({at::kDouble, {kGrain / 8}, 0, true}).defined());
  EXPECT_THAT(refusal({kGrain / 8 + 1}, 0), HasSubstr("of the GPU's arena: it would end outside"));
  EXPECT_THAT(refusal({1}, kGrain), HasSubstr("it would end outside"));
  EXPECT_THAT(refusal({1}, 64), HasSubstr("allowed: a multiple of 256"));
  EXPECT_THAT(refusal({1}, -256), HasSubstr("allowed: a multiple of 256"));
  EXPECT_THAT(refusal({std::int64_t{1} << 62}, 0), HasSubstr("no such size"));
  EXPECT_EQ(error_of([&] { (void)arena->put(at::ones({2}, at::kLong)); }).kind, "request");
}

TEST(DeviceArena, WhatWasThereBeforeStaysUntilItIsForgotten) {
  const auto alive = std::make_shared<int>(0);
  DeviceMemory counted;
  counted.type = at::kCPU;
  counted.allocate = [&](at::Device, std::int64_t bytes) -> DeviceMemory::Block {
    if (bytes > 8 * kGrain) throw std::runtime_error("too much");
    ++*alive;
    return {std::shared_ptr<char>(new char[static_cast<std::size_t>(bytes)],
                                  [alive](const char* all) {
                                    delete[] all;
                                    --*alive;
                                  }),
            Json::object()};
  };
  {
    DeviceArena arena(counted);
    arena.reserve(at::kCPU, kGrain);
    arena.reserve(at::kCPU, 2 * kGrain);
    EXPECT_EQ(*alive, 2);
    arena.forget_old();
    EXPECT_EQ(*alive, 1);
    EXPECT_THROW((void)arena.reserve(at::kCPU, 16 * kGrain), std::runtime_error);
    EXPECT_EQ(arena.size(), 2 * kGrain);
    EXPECT_EQ(*alive, 1);
  }
  EXPECT_EQ(*alive, 0);
}

TEST(DeviceArena, TheGpuGetsItsMemoryBack) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  const auto free_bytes = [] {
    std::size_t free = 0, all = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &all), cudaSuccess);
    return static_cast<std::int64_t>(free);
  };
  DeviceArena arena(cuda_memory());
  arena.reserve({at::kCUDA, 0}, 1);
  const Json opened_by = arena.opened_by();
  EXPECT_EQ(opened_by["handle"].get<std::string>().size(), 128U);
  EXPECT_EQ(opened_by["gpu"].get<std::string>().size(), 32U);
  const std::int64_t before = free_bytes();
  arena.reserve({at::kCUDA, 0}, 256 * kGrain);
  EXPECT_LT(free_bytes(), before - 128 * kGrain);
  arena.release();
  EXPECT_GT(free_bytes(), before - 128 * kGrain);
  EXPECT_THROW((void)arena.reserve({at::kCUDA, 0}, std::int64_t{1} << 50), std::runtime_error);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // nobody else takes it for its own
}

}  // namespace device_arena_test
}  // namespace suites::implementation::tests
