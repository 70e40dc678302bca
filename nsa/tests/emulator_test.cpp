// The emulation itself (nsa/kernels/emulation): that it sees the mistakes it is there for. What stands here as a kernel
// is one, small and wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "nsa/kernels/emulation/cuda.hpp"
#include "nsa/kernels/emulation/emulator.hpp"

namespace nsa::kernels::emulation {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

float of_bf16(std::uint16_t bits) { return __bfloat162float(std::bit_cast<__nv_bfloat16>(bits)); }
std::uint64_t operand(std::uint32_t address) {
  return address >> 4 | std::uint64_t{1} << 16 | std::uint64_t{64} << 32 | std::uint64_t{1} << 62;
}

constexpr int kBytes = 64 << 7;  // a tile [64][64]
struct Tile {
  alignas(16) std::uint16_t values[64 * 64];
  Tile() { std::fill_n(values, 64 * 64, std::bit_cast<std::uint16_t>(__float2bfloat16_rn(1.f))); }
};
struct Mistake {
  bool publish = true, barrier = true, begin = true, wait = true, write = false;
};
// The sum over 16 columns of ones times ones by a warpgroup; every thread's first value to `out`.
void ones_kernel(const Tile* tile, Mistake mistake, float* out) {
  const std::uint32_t base = (shared_address(shared()) + 1023) & ~1023u;
  for (std::uint32_t at = threadIdx.x * 16; at < kBytes; at += 128 * 16)
    copy_async(base + at, reinterpret_cast<const char*>(tile) + at);
  commit_copies();
  wait_copies(0);
  if (mistake.publish) publish_to_async();
  if (mistake.barrier) __syncthreads();
  float c[8][4];
  if (mistake.begin) products_begin();
  start_product(&c[0][0], 64, false, nullptr, operand(base), operand(base), of_bf16);
  products_commit();
  if (mistake.write && threadIdx.x == 5) std::memset(shared_at(base, 16), 0, 16);
  if (mistake.wait) products_wait(0);
  out[threadIdx.x] = c[0][0];
  if (!mistake.wait) products_wait(0);
}
std::vector<float> ones(Mistake mistake) {
  const Tile tile;
  std::vector<float> out(128);
  launch(nullptr, Grid(dim3(1), 128, kBytes + 1024, nullptr), [&] { ones_kernel(&tile, mistake, out.data()); });
  return out;
}
// One launch of a block.
auto block(int threads, void (*kernel)()) {
  return [=] { launch(nullptr, Grid(dim3(1), static_cast<unsigned>(threads), 1024, nullptr), kernel); };
}

TEST(Emulator, Products) { EXPECT_EQ(ones({}), std::vector<float>(128, 16.f)); }
TEST(Emulator, ResultsAreNaNBeforeTheWait) {
  for (const float x : ones({.wait = false})) EXPECT_TRUE(std::isnan(x));
}
TEST(Emulator, OperandsArePublished) {
  EXPECT_THAT([] { ones({.publish = false}); }, ThrowsMessage<Error>(HasSubstr("published")));
}
TEST(Emulator, OperandsOfOtherThreadsAreWaitedFor) {
  bool seen = false;
  for (int order = 0; order < 10 && !seen; ++order) {
    set_order(order);
    try {
      for (const float x : ones({.barrier = false})) seen |= x != 16.f;
    } catch (const Error&) {
      seen = true;
    }
  }
  EXPECT_TRUE(seen);
}
TEST(Emulator, ProductsBegin) {
  EXPECT_THAT([] { ones({.begin = false}); }, ThrowsMessage<Error>(HasSubstr("products_begin")));
}
TEST(Emulator, OperandsStayWhileAProductRuns) {
  EXPECT_THAT([] { ones({.write = true}); }, ThrowsMessage<Error>(HasSubstr("a product")));
}
TEST(Emulator, Deadlock) {
  EXPECT_THAT(block(64,
                    [] {
                      if (threadIdx.x != 3) __syncthreads();
                    }),
              ThrowsMessage<Error>(HasSubstr("deadlock")));
}
TEST(Emulator, WarpsStayTogether) {
  EXPECT_THAT(block(32, [] { threadIdx.x < 16 ? __syncwarp() : void(__any_sync(0xffffffffu, true)); }),
              ThrowsMessage<Error>(HasSubstr("different places")));
}
TEST(Emulator, SharedMemoryEnds) {
  EXPECT_THAT(block(32, [] { static_cast<char*>(shared())[1024] = 0; }),
              ThrowsMessage<Error>(HasSubstr("beyond shared memory")));
  EXPECT_THAT(block(32, [] { copy_async(shared_address(shared()) + 1024, nullptr); }),
              ThrowsMessage<Error>(HasSubstr("outside shared memory")));
}
TEST(Emulator, LaunchesAskForSharedMemory) {
  EXPECT_THAT([] { launch(nullptr, Grid(dim3(1), 32, 64 << 10, nullptr), [] {}); },
              ThrowsMessage<Error>(HasSubstr("than it asked for")));
}

}  // namespace
}  // namespace nsa::kernels::emulation
