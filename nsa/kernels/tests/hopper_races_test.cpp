// The same of Hopper's: barriers that count, barriers with a number, TMA, wgmma. Compiled as the kernels are.
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "nsa/kernels/tests/races.hpp"

namespace nsa::kernels::emulation {
namespace {

std::uint64_t wgmma_descriptor(std::uint32_t address) {
  return address >> 4 | std::uint64_t{1} << 16 | std::uint64_t{64} << 32 | std::uint64_t{1} << 62;
}
float of_bf16(std::uint16_t bits) { return __bfloat162float(std::bit_cast<__nv_bfloat16>(bits)); }

// ---- barriers that count, and those with a number

// Thread 0 writes, thread `arrives` of its warp arrives, all threads wait, thread 40 reads.
struct Handover {
  bool wait = true, warp_barrier = true;
  int arrives = 0;
};
TEST(Races, BarriersThatCount) {
  std::vector<int> out(64);
  const auto kernel = [&](Handover has) {
    const std::uint32_t barrier = shared_address(shared()) + 1024;
    if (own() == 0) mbarrier_init(barrier, 1);
    __syncthreads();
    if (own() == 0) words()[0] = 1;
    if (own() < 32 && has.warp_barrier) __syncwarp();
    if (own() == has.arrives) mbarrier_arrive(barrier);
    if (has.wait) mbarrier_wait(barrier, 0);
    if (own() == 40) out[0] = words()[0];
  };
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel({}); })));
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel({.arrives = 7}); })));
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel({.warp_barrier = false}); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel({.wait = false}); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel({.warp_barrier = false, .arrives = 7}); })));
}
// What a thread writes after it has arrived is another step.
TEST(Races, AnArrivalOrdersWhatCameBefore) {
  std::vector<int> out(64);
  const auto kernel = [&](bool late) {
    const std::uint32_t barrier = shared_address(shared()) + 1024;
    if (own() == 0) mbarrier_init(barrier, 1);
    __syncthreads();
    if (own() == 0 && !late) words()[0] = 1;
    if (own() == 0) mbarrier_arrive(barrier);
    if (own() == 0 && late) words()[0] = 1;
    mbarrier_wait(barrier, 0);
    if (own() == 40) out[0] = words()[0];
  };
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel(false); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel(true); })));
}
// From warp to warp: who learns of an arrival passes on what it knows.
TEST(Races, BarriersThatCountInARow) {
  std::vector<int> out(96);
  const auto kernel = [&](bool waits) {
    const std::uint32_t first = shared_address(shared()) + 1024, second = first + 8;
    if (own() == 0) mbarrier_init(first, 1);
    if (own() == 0) mbarrier_init(second, 1);
    __syncthreads();
    if (own() == 0) words()[0] = 1;
    if (own() == 0) mbarrier_arrive(first);
    if (own() == 32 && waits) mbarrier_wait(first, 0);
    if (own() == 32) mbarrier_arrive(second);
    if (own() == 64) mbarrier_wait(second, 0);
    if (own() == 64) out[0] = words()[0];
  };
  EXPECT_TRUE(silent(outcomes(96, [&] { kernel(true); })));
  EXPECT_TRUE(seen(outcomes(96, [&] { kernel(false); })));
}
TEST(Races, BarriersWithANumber) {
  std::vector<int> out(96);
  const auto kernel = [&](int reader) {
    if (own() == 0) words()[0] = 1;
    if (own() < 64) bar_sync(1, 64);
    if (own() == reader) out[0] = words()[0];
  };
  EXPECT_TRUE(silent(outcomes(96, [&] { kernel(40); })));
  EXPECT_TRUE(seen(outcomes(96, [&] { kernel(70); })));  // who did not come
}
// A place of a ring: thread 0 has it filled twice, warps 1 and 2 read it.
struct Round {
  bool wait_full = true, wait_empty = true, warp_barrier = true;
  int arriving_warps = 2;
};
TEST(Races, BoxesInARing) {
  alignas(16) const char source[128] = {};
  std::vector<int> out(96);
  const auto kernel = [&](Round has) {
    const std::uint32_t place = (shared_address(shared()) + 127) & ~127u, full = place + 1024, empty = full + 8;
    const auto* const words = static_cast<const int*>(static_cast<const void*>(shared_at(place, 128)));
    if (own() == 0) {
      mbarrier_init(full, 1);
      mbarrier_init(empty, has.arriving_warps);
      fence_proxy_async();
    }
    __syncthreads();
    for (unsigned round = 0; round < 2; ++round)
      if (own() == 0) {
        if (round > 0 && has.wait_empty) mbarrier_wait(empty, 0);
        mbarrier_arrive_expect_tx(full, 128);
        bulk_load(place, source, 128, full);
        if (round == 1) mbarrier_wait(full, 1);
      } else if (own() >= 32) {
        if (round > 0 || has.wait_full) mbarrier_wait(full, round);
        bar_sync(1, 64);
        if (round == 0) out[own()] = words[own() % 32];
        if (has.warp_barrier) __syncwarp();
        if (own() % 32 == 0 && own() / 32 <= has.arriving_warps) mbarrier_arrive(empty);
      }
  };
  const std::string either = "(CTA 0,0,0";  // also what the emulation says of boxes
  EXPECT_TRUE(silent(outcomes(96, [&] { kernel({}); })));
  EXPECT_TRUE(seen(outcomes(96, [&] { kernel({.wait_full = false}); }), either));
  EXPECT_TRUE(seen(outcomes(96, [&] { kernel({.warp_barrier = false}); })));
  EXPECT_TRUE(seen(outcomes(96, [&] { kernel({.arriving_warps = 1}); })));
}
// TMA reads until its thread has waited.
TEST(Races, BulkCopiesReadTheirSource) {
  std::vector<float> sums(4);
  const auto kernel = [&](bool late) {
    const std::uint32_t place = shared_address(shared());
    if (own() == 0) {
      *reinterpret_cast<int4*>(to_be_published(place)) = {};
      fence_proxy_async();
      bulk_store(sums.data(), place, 16, true);
      if (!late) bulk_wait();
    }
    bar_sync(1, 64);
    if (own() == 40) words()[0] = 1;
    if (own() == 0 && late) bulk_wait();
  };
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel(false); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel(true); }), "(CTA 0,0,0"));  // or that this was not published
}
// Other CTAs of the launch, with and without such barriers.
TEST(Races, BlocksBesideThoseThatCount) {
  std::vector<int> out(64);
  const auto counts = [&] {
    if (own() == 0) mbarrier_init(shared_address(shared()) + 1024, 1);
    __syncthreads();
  };
  const auto plants = [&] {
    words()[own()] = own();
    out[own()] = words()[(own() + 32) % 64];
  };
  int found = 0;
  for (const std::string& text : outcomes(
           64, [&] { blockIdx.x == 0 ? counts() : plants(); }, 2))
    found += text.find("a race") != std::string::npos && text.find("(CTA 1,0,0") != std::string::npos;
  EXPECT_EQ(found, 10);
}

// ---- products

// A warpgroup's copies [64][64], their product with themselves, and what overwrites them.
struct Product {
  bool publish_late = false, barrier = true, barrier_after = true;
};
void product(Product has) {
  const std::uint32_t base = (shared_address(shared()) + 1023) & ~1023u;
  const auto copy = [&] {
    for (int at = own() * 16; at < 64 * 128; at += 128 * 16) cp_async(base + at, nullptr);
    cp_async_commit();
    cp_async_wait(0);
  };
  copy();
  if (!has.publish_late) fence_proxy_async();
  if (has.barrier) __syncthreads();
  if (has.publish_late) fence_proxy_async();
  float c[8][4];
  wgmma_fence();
  start_product(&c[0][0], 64, false, Operands::columns, nullptr, wgmma_descriptor(base), wgmma_descriptor(base),
                of_bf16);
  wgmma_commit();
  wgmma_wait(0);
  if (has.barrier_after) __syncthreads();
  copy();
}
TEST(Races, Products) {
  // Or what the emulation says of products that read what no thread has published: which is first, the order says.
  const std::string either = "(CTA 0,0,0";
  EXPECT_TRUE(silent(outcomes(128, [] { product({}); })));
  EXPECT_TRUE(seen(outcomes(128, [] { product({.barrier = false}); }), either));
  EXPECT_TRUE(seen(outcomes(128, [] { product({.publish_late = true}); }), either));
  EXPECT_TRUE(seen(outcomes(128, [] { product({.barrier_after = false}); }), either));
}

}  // namespace
}  // namespace nsa::kernels::emulation
