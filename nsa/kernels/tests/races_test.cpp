// That the emulation (nsa/kernels/tests/emulation) sees races, in whatever order threads run, and sees none in kernels
// without: barriers of a CTA and a warp, CTAs, copies. Compiled as the kernels are.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nsa/kernels/tests/races.hpp"

namespace nsa::kernels::emulation {
namespace {

// ---- barriers of the CTA

// Every thread writes a word, reads its neighbour's in another warp, and writes that.
void exchange(int* out, bool before_read, bool before_write) {
  words()[own()] = own();
  if (before_read) __syncthreads();
  out[own()] = words()[(own() + 32) % 64];
  if (before_write) __syncthreads();
  words()[(own() + 32) % 64] = 0;
}
TEST(Races, BlockBarriers) {
  std::vector<int> out(64);
  EXPECT_TRUE(silent(outcomes(64, [&] { exchange(out.data(), true, true); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { exchange(out.data(), false, true); })));
  EXPECT_TRUE(silent(outcomes(64, [&] { exchange(out.data(), true, false); })));  // only its reader writes a word
}
TEST(Races, WriteAfterRead) {
  std::vector<int> out(64);
  const auto kernel = [&](bool barrier) {
    if (own() == 0) words()[0] = 1;
    __syncthreads();
    out[own()] = words()[0];
    if (barrier) __syncthreads();
    if (own() == 40) words()[0] = 2;
  };
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel(true); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel(false); }), "shared memory + 0 is"));
}
TEST(Races, TwoWrites) {
  EXPECT_TRUE(seen(outcomes(64, [] { words()[0] = own(); })));
  EXPECT_TRUE(silent(outcomes(64, [] { words()[0] = 7; })));  // of the same value
}
TEST(Races, StaticSharedMemory) {
  const auto kernel = [](bool barrier, int* out) {
    __shared__ int value;
    if (own() == 0) value = static_cast<int>(blockIdx.x);
    if (barrier) __syncthreads();
    out[blockIdx.x * 64 + own()] = value;
  };
  std::vector<int> out(192);
  EXPECT_TRUE(silent(outcomes(
      64, [&] { kernel(true, out.data()); }, 3)));
  EXPECT_TRUE(seen(outcomes(
                       64, [&] { kernel(false, out.data()); }, 3),
                   "a race: static shared memory"));
}
TEST(Races, Bytes) {
  EXPECT_TRUE(silent(outcomes(64, [] { static_cast<char*>(shared())[own()] = 1; })));
  EXPECT_TRUE(seen(outcomes(64, [] { static_cast<char*>(shared())[own() / 2] = static_cast<char>(own()); })));
  EXPECT_TRUE(seen(outcomes(64, [] {
    if (own() == 0) words()[0] = 1;
    if (own() == 40) static_cast<char*>(shared())[3] = 1;
  })));
}
TEST(Races, SaysWhoAndWhere) {
  const auto kernel = [] {
    if (threadIdx.x % 32 == 5) words()[9] = own();
  };
  EXPECT_TRUE(seen(outcomes(64, kernel), "shared memory + 36 is written by thread "));
  EXPECT_TRUE(seen(outcomes(64, kernel), " of CTA 0,0,0 and written by thread "));
  EXPECT_TRUE(seen(outcomes(64, kernel), "launched by races_test.cpp:"));
}

// ---- warps

TEST(Races, WarpBarriers) {
  std::vector<int> out(64);
  const auto kernel = [&](bool barrier, bool collective) {
    words()[own()] = own();
    if (barrier) __syncwarp();
    if (collective) __shfl_sync(0xffffffffu, 1, 0);
    out[own()] = words()[own() ^ 1];
  };
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel(true, false); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel(false, false); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel(false, true); })));  // it orders no accesses to memory
}
TEST(Races, WarpBarriersOrderNoOtherWarp) {
  std::vector<int> out(64);
  const auto kernel = [&] {
    words()[own()] = own();
    __syncwarp();
    out[own()] = words()[own() ^ 32];
  };
  EXPECT_TRUE(seen(outcomes(64, kernel)));
}
TEST(Races, MatricesAreReadByTheirLanes) {
  const auto kernel = [](bool barrier) {
    for (int i = 0; i < 4; ++i) words()[i * 32 + own()] = own();
    if (barrier) __syncwarp();
    std::uint32_t r[4];
    ldmatrix(r, shared_address(shared()) + own() * 16, false);
  };
  EXPECT_TRUE(silent(outcomes(32, [&] { kernel(true); })));
  EXPECT_TRUE(seen(outcomes(32, [&] { kernel(false); })));
}

// ---- CTAs

TEST(Races, BlocksShareGlobalMemory) {
  std::vector<int> out(64);
  const auto writes = [&] {
    if (own() == 3) out[5] = static_cast<int>(blockIdx.x);
  };
  const auto one_reads = [&] {
    if (own() == 3 && blockIdx.x == 0) out[5] = 1;
    if (own() == 3 && blockIdx.x == 1) out[6] = out[5];
  };
  EXPECT_TRUE(seen(outcomes(32, writes, 2), "a race: global memory"));
  EXPECT_TRUE(seen(outcomes(32, one_reads, 2)));
  EXPECT_TRUE(silent(outcomes(32, writes)));  // launches come one after the other
  EXPECT_TRUE(silent(outcomes(
      32, [] { words()[own()] = static_cast<int>(blockIdx.x); }, 2)));
}
TEST(Races, Atomics) {
  std::vector<int> out(64);
  EXPECT_TRUE(silent(outcomes(
      64, [&] { atomicAdd(&out[0], own()); }, 3)));
  EXPECT_TRUE(seen(outcomes(64, [&] { own() == 40 ? void(out[1] = out[0]) : void(atomicAdd(&out[0], own())); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { own() == 40 ? void(out[0] = 1) : void(atomicAdd(&out[0], own())); })));
}
// The last CTA to finish reads what the others wrote.
struct Ticket {
  bool writer_fence = true, barrier = true, reader_fence = true;
};
TEST(Races, Fences) {
  int finished = 0;
  std::vector<int> out(64 * 4 + 64);
  const auto kernel = [&](Ticket has) {
    __shared__ bool last;
    out[blockIdx.x * 64 + own()] = own();
    if (has.writer_fence) __threadfence();
    if (has.barrier) __syncthreads();
    if (own() == 0) last = atomicAdd(&finished, 1) % 4 == 3;
    __syncthreads();
    if (!last) return;
    if (has.reader_fence) __threadfence();
    int sum = 0;
    for (int block = 0; block < 4; ++block) sum += out[block * 64 + own()];
    out[4 * 64 + own()] = sum;
  };
  const auto with = [&](Ticket ticket) {
    finished = 0;
    return outcomes(
        64, [&, ticket] { kernel(ticket); }, 4);
  };
  EXPECT_TRUE(silent(with({})));
  EXPECT_TRUE(seen(with({.writer_fence = false})));
  EXPECT_TRUE(seen(with({.barrier = false})));
  EXPECT_TRUE(seen(with({.reader_fence = false})));
}

// ---- copies

TEST(Races, Copies) {
  alignas(16) const int source[4] = {1, 2, 3, 4};
  std::vector<int> out(64);
  const auto kernel = [&](bool wait, bool barrier, int reader) {
    const std::uint32_t to = shared_address(shared());
    if (own() == 0) cp_async(to, source);
    cp_async_commit();
    if (wait) cp_async_wait(0);
    if (barrier) __syncthreads();
    if (own() == reader) out[0] = words()[1];
    cp_async_wait(0);
  };
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel(true, true, 40); })));
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel(true, false, 0); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel(true, false, 40); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel(false, true, 40); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel(false, false, 0); }), "a running copy of thread 0"));
}
TEST(Races, CopiesOverwrite) {
  std::vector<int> out(64);
  const auto kernel = [&](bool barrier) {
    out[own()] = words()[1];
    if (barrier) __syncthreads();
    if (own() == 40) cp_async(shared_address(shared()), nullptr);
    cp_async_commit();
    cp_async_wait(0);
  };
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel(true); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel(false); })));
}
TEST(Races, CopiesReadTheirSource) {
  alignas(16) int source[4] = {};
  const auto kernel = [&](bool barrier) {
    if (own() == 0) cp_async(shared_address(shared()), source);
    cp_async_commit();
    cp_async_wait(0);
    if (barrier) __syncthreads();
    if (own() == 40) source[2] = 1;
  };
  EXPECT_TRUE(silent(outcomes(64, [&] { kernel(true); })));
  EXPECT_TRUE(seen(outcomes(64, [&] { kernel(false); }), "a race: global memory"));
}

}  // namespace
}  // namespace nsa::kernels::emulation
