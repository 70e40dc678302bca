// That the emulation (nsa/kernels/tests/emulation) sees races, in whatever order threads run, and sees none in kernels
// without. Compiled as the kernels are.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "nsa/kernels/launch/fork.hpp"
#include "nsa/kernels/tests/emulation/cuda.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"

namespace nsa::kernels::emulation {
namespace {

// What launches of a kernel end with, in several orders: an error's text, or "".
std::vector<std::string> outcomes(int threads, const std::function<void()>& kernel, unsigned blocks = 1) {
  std::vector<std::string> all;
  for (int order = 0; order < 10; ++order) {
    set_order(order);
    try {
      launch(nullptr, Grid(dim3(blocks), static_cast<unsigned>(threads), 20 << 10, nullptr), kernel);
      all.emplace_back();
    } catch (const Error& error) {
      all.emplace_back(error.what());
    }
  }
  return all;
}
testing::AssertionResult silent(const std::vector<std::string>& all) {
  for (const std::string& text : all)
    if (!text.empty()) return testing::AssertionFailure() << text;
  return testing::AssertionSuccess();
}
// In every order.
testing::AssertionResult seen(const std::vector<std::string>& all, const std::string& what = "a race") {
  for (const std::string& text : all)
    if (text.find(what) == std::string::npos) return testing::AssertionFailure() << "\"" << text << "\"";
  return testing::AssertionSuccess();
}

int* words() { return static_cast<int*>(shared()); }
int own() { return static_cast<int>(threadIdx.x); }
std::uint64_t wgmma_descriptor(std::uint32_t address) {
  return address >> 4 | std::uint64_t{1} << 16 | std::uint64_t{64} << 32 | std::uint64_t{1} << 62;
}
float of_bf16(std::uint16_t bits) { return __bfloat162float(std::bit_cast<__nv_bfloat16>(bits)); }

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

// ---- launches

using Kernel = std::function<void()>;
void run(const Kernel& kernel, cudaStream_t stream = nullptr, bool early = false) {
  Grid grid(dim3(2), 64, 1024, stream);
  grid.early = early;
  launch(nullptr, grid, kernel);
}
// The first as usual, the others early.
void run_chain(const std::vector<Kernel>& kernels) {
  for (std::size_t i = 0; i < kernels.size(); ++i) run(kernels[i], nullptr, i > 0);
}
testing::AssertionResult seen(const std::function<void()>& launches, const std::string& what) {
  try {
    launches();
  } catch (const Error& error) {
    return seen(std::vector<std::string>{error.what()}, what);
  }
  return testing::AssertionFailure() << "nothing was seen";
}

// Threads of CTA 0 have a word each.
struct Words {
  std::vector<int> words = std::vector<int>(64), copies = std::vector<int>(64);
  Kernel write = [this] {
    if (blockIdx.x == 0) words[own()] = 1;
  };
  Kernel read = [this] {
    if (blockIdx.x == 0) copies[own()] = words[own()];
  };
  Kernel read_early = [this] {
    if (blockIdx.x == 0) static_cast<void>(*static_cast<volatile int*>(&words[own()]));
    griddepcontrol_wait();
  };
  Kernel read_late = [this] {
    griddepcontrol_wait();
    read();
  };
};
TEST(Launches, OnTwoStreams) {
  Words x, y;
  const auto both = [](const Kernel& main, const Kernel& side) {
    return [=] {
      Fork fork(nullptr, second_stream());
      run(main);
      run(side, fork.side());
    };
  };
  both(x.write, y.write)();
  both(x.read, [&] {
    if (blockIdx.x == 0) y.copies[own()] = x.words[own()];
  })();
  EXPECT_TRUE(seen(both(x.write, x.write), "is written by launch"));
  EXPECT_TRUE(seen(both(x.write, x.read), "is written by launch"));
  EXPECT_TRUE(seen(both(x.read, x.write), "is read by launch"));
}
TEST(Launches, AForkBeginsAfterMainAndIsJoined) {
  Words x;
  const auto fork_and_write = [&](bool join_first) {
    return [&x, join_first] {
      Fork fork(nullptr, second_stream());
      run(x.read, fork.side());
      if (join_first) fork.join();
      run(x.write);
    };
  };
  run(x.write);
  fork_and_write(true)();
  EXPECT_TRUE(seen(fork_and_write(false), "is read by launch"));
  run(x.write);  // an exception has joined too
  const auto use_after_the_join = [&] { run(x.read, second_stream()); };
  EXPECT_TRUE(seen(use_after_the_join, "on the second stream without a fork"));
}
TEST(Launches, MemoryThatTheRuntimeSets) {
  Words x;
  const auto set_on = [&](cudaStream_t stream) {
    return [&x, stream] {
      Fork fork(nullptr, second_stream());
      cudaMemsetAsync(x.words.data(), 0, 64 * sizeof(int), stream);
      run(x.read, fork.side());
    };
  };
  set_on(second_stream())();
  EXPECT_TRUE(seen(set_on(nullptr), "is written by launch"));
}
TEST(Launches, ThatBeginEarly) {
  Words x, y;
  run(x.write);
  run_chain({y.write, x.read_early, x.read_early});  // what was there before the chain
  run_chain({x.write, x.read_late, y.read_early});
  const auto seen_too_soon = [](const std::vector<Kernel>& kernels) {
    return seen([&] { run_chain(kernels); }, "before griddepcontrol_wait()");
  };
  EXPECT_TRUE(seen_too_soon({x.write, x.read_early}));
  EXPECT_TRUE(seen_too_soon({x.write, y.read_late, x.read_early}));  // may have begun with the one before
  run(x.write);
  run(x.read_early);  // begins as usual
}
TEST(Launches, ThatBeginEarlyWaitInEveryBlock) {
  Words x;
  const auto early = [](const Kernel& kernel) { return [=] { run_chain({[] {}, kernel}); }; };
  const auto one_waits = [] {
    if (blockIdx.x == 0) griddepcontrol_wait();
  };
  const auto waits_late = [&] {
    x.write();
    griddepcontrol_wait();
  };
  EXPECT_TRUE(seen(early(one_waits), "ends without griddepcontrol_wait()"));
  EXPECT_TRUE(seen(early(waits_late), "writes before griddepcontrol_wait()"));
}
// A copy that is asked for early reads early.
TEST(Launches, CopiesThatBeginEarly) {
  alignas(16) int source[64] = {};
  const auto write = [&] {
    if (blockIdx.x == 0) source[own()] = 1;
  };
  const auto copy = [&](bool wait_first) {
    return [&source, wait_first] {
      if (wait_first) griddepcontrol_wait();
      if (own() == 0) cp_async(shared_address(shared()), source);
      cp_async_commit();
      griddepcontrol_wait();
      cp_async_wait(0);
    };
  };
  run_chain({write, copy(true)});
  EXPECT_TRUE(seen([&] { run_chain({write, copy(false)}); }, "before griddepcontrol_wait()"));
}

}  // namespace
}  // namespace nsa::kernels::emulation
