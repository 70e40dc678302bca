// The emulation itself (nsa/kernels/tests/emulation): that it sees the mistakes it is there for. What stands here as a
// kernel is one, small and wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "nsa/kernels/device/tensor_map.hpp"
#include "nsa/kernels/tests/emulation/cuda.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"

namespace nsa::kernels::emulation {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

float of_bf16(std::uint16_t bits) { return __bfloat162float(std::bit_cast<__nv_bfloat16>(bits)); }
std::uint64_t wgmma_descriptor(std::uint32_t address) {
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
    cp_async(base + at, reinterpret_cast<const char*>(tile) + at);
  cp_async_commit();
  cp_async_wait(0);
  if (mistake.publish) fence_proxy_async();
  if (mistake.barrier) __syncthreads();
  float c[8][4];
  if (mistake.begin) wgmma_fence();
  start_product(&c[0][0], 64, false, Operands::columns, nullptr, wgmma_descriptor(base), wgmma_descriptor(base),
                of_bf16);
  wgmma_commit();
  if (mistake.write && threadIdx.x == 5) std::memset(shared_at(base, 16), 0, 16);
  if (mistake.wait) wgmma_wait(0);
  out[threadIdx.x] = c[0][0];
  if (!mistake.wait) wgmma_wait(0);
}
std::vector<float> ones(Mistake mistake) {
  const Tile tile;
  std::vector<float> out(128);
  launch(nullptr, Grid(dim3(1), 128, kBytes + 1024, nullptr), [&] { ones_kernel(&tile, mistake, out.data()); });
  return out;
}
// One launch of a block.
auto cta(int threads, void (*kernel)()) {
  return [=] { launch(nullptr, Grid(dim3(1), static_cast<unsigned>(threads), 1024, nullptr), kernel); };
}

TEST(Emulator, Products) { EXPECT_EQ(ones({}), std::vector<float>(128, 16.f)); }
// The same of numbers that tell rows from columns: a [64][64] tile x, x(i, j) = i + 2 j, with 16 of it summed over.
// stmatrix stores it as the threads of a product's result hold it.
void sums_kernel(Operands operands, bool publish, float (*out)[8][4]) {
  const std::uint32_t base = (shared_address(shared()) + 1023) & ~1023u;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto x = [](int i, int j) {
    return static_cast<std::uint32_t>(std::bit_cast<std::uint16_t>(__float2bfloat16_rn(static_cast<float>(i + 2 * j))));
  };
  for (int k = 0; k < 4; ++k) {
    std::uint32_t r[4];
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + i % 2 * 8 + lane / 4, column = k * 16 + i / 2 * 8 + lane % 4 * 2;
      r[i] = x(row, column) | x(row, column + 1) << 16;
    }
    const int row = warp * 16 + lane % 16, chunk = 2 * k + lane / 16;
    const uint4 eight = row_of_matrices(r);
    *reinterpret_cast<uint4*>(
        to_be_published(base + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4)))) = eight;
  }
  if (publish) fence_proxy_async();
  __syncthreads();
  wgmma_fence();
  start_product(&out[threadIdx.x][0][0], 64, false, operands, nullptr, wgmma_descriptor(base), wgmma_descriptor(base),
                of_bf16);
  wgmma_commit();
  wgmma_wait(0);
}
TEST(Emulator, WhatIsSummedOver) {
  for (const Operands operands : {Operands::columns, Operands::columns_rows, Operands::rows}) {
    float got[128][8][4];
    launch(nullptr, Grid(dim3(1), 128, kBytes + 1024, nullptr), [&] { sums_kernel(operands, true, got); });
    for (int thread = 0; thread < 128; ++thread)
      for (int n = 0; n < 8; ++n)
        for (int i = 0; i < 4; ++i) {
          const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 * 8, column = n * 8 + thread % 4 * 2 + i % 2;
          float sum = 0;
          for (int k = 0; k < 16; ++k) {
            const int left = operands == Operands::rows ? k + 2 * row : row + 2 * k;
            const int right = operands == Operands::columns ? column + 2 * k : k + 2 * column;
            sum += static_cast<float>(left * right);
          }
          ASSERT_EQ(got[thread][n][i], sum) << static_cast<int>(operands) << " " << thread << " " << n << " " << i;
        }
  }
}
TEST(Emulator, StoredMatricesArePublished) {
  float got[128][8][4];
  const auto stored = [&] {
    launch(nullptr, Grid(dim3(1), 128, kBytes + 1024, nullptr), [&] { sums_kernel(Operands::rows, false, got); });
  };
  EXPECT_THAT(stored, ThrowsMessage<Error>(HasSubstr("published")));
}
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
  EXPECT_THAT([] { ones({.begin = false}); }, ThrowsMessage<Error>(HasSubstr("wgmma_fence")));
}
TEST(Emulator, OperandsStayWhileAProductRuns) {
  EXPECT_THAT([] { ones({.write = true}); }, ThrowsMessage<Error>(HasSubstr("a product")));
}
TEST(Emulator, Deadlock) {
  EXPECT_THAT(cta(64,
                  [] {
                    if (threadIdx.x != 3) __syncthreads();
                  }),
              ThrowsMessage<Error>(HasSubstr("deadlock")));
}
TEST(Emulator, WarpgroupsMeet) {
  EXPECT_NO_THROW(cta(256, [] {
    for (int i = 0; i < 9; ++i) bar_sync_warpgroup(1 + static_cast<int>(threadIdx.x) / 128);
  })());
  EXPECT_NO_THROW(cta(128, [] {  // what was written before is read behind it, at once and again
    const int x = static_cast<int>(threadIdx.x);
    int* const all = static_cast<int*>(shared());
    for (int i = 0; i < 9; ++i) {
      all[x] = i * x;
      bar_sync_warpgroup(3);
      require(all[127 - x] == i * (127 - x), "too early");
      bar_sync_warpgroup(3);
    }
  })());
  EXPECT_THAT(cta(256, [] { bar_sync_warpgroup(1); }), ThrowsMessage<Error>(HasSubstr("two warpgroups")));
  EXPECT_THAT(cta(128, [] { bar_sync_warpgroup(0); }), ThrowsMessage<Error>(HasSubstr("1 to 15")));
  EXPECT_THAT(cta(128,
                  [] {
                    if (threadIdx.x != 77) bar_sync_warpgroup(2);
                  }),
              ThrowsMessage<Error>(HasSubstr("127 of 128 at barrier 2")));
}
TEST(Emulator, ThreadsMeet) {
  EXPECT_NO_THROW(cta(128, [] {
    for (int i = 0; i < 9; ++i)
      if (threadIdx.x >= 64) bar_sync(1, 64);
  })());
  EXPECT_THAT(cta(96, [] { bar_sync(1, threadIdx.x < 32 ? 64 : 96); }),
              ThrowsMessage<Error>(HasSubstr("different numbers of threads")));
}
TEST(Emulator, TurnsArePassedOn) {
  static int number;
  number = 0;
  EXPECT_NO_THROW(cta(64, [] {
    const int own = static_cast<int>(threadIdx.x);
    wait_for_turn(&number, 63 - own);
    pass_turn(&number, 64 - own);
  })());
  EXPECT_EQ(number, 64);
  EXPECT_THAT(cta(32, [] { wait_for_turn(&number, 65); }), ThrowsMessage<Error>(HasSubstr("32 for their turn")));
}
TEST(Emulator, BulkCopiesTakeWhatWasPublished) {
  alignas(16) static float sum[4];
  static bool published, awaited;
  const auto copied = [](bool publish, bool wait) {
    std::fill_n(sum, 4, 1.f);
    published = publish, awaited = wait;
    cta(32, [] {
      if (threadIdx.x > 0) return;
      const std::uint32_t at = shared_address(shared());
      for (const bool add : {false, true}) {
        *reinterpret_cast<float4*>(to_be_published(at)) = {2, 3, 4, 5};
        if (published) fence_proxy_async();
        bulk_store(sum, at, 16, add);
        if (awaited) bulk_wait();
      }
    })();
    return sum[3];
  };
  EXPECT_EQ(copied(true, true), 10);
  EXPECT_THAT([&] { copied(false, true); }, ThrowsMessage<Error>(HasSubstr("no thread has published")));
  EXPECT_THAT([&] { copied(true, false); }, ThrowsMessage<Error>(HasSubstr("on their way")));
}
TEST(Emulator, WarpsStayTogether) {
  EXPECT_THAT(cta(32, [] { threadIdx.x < 16 ? __syncwarp() : void(__any_sync(0xffffffffu, true)); }),
              ThrowsMessage<Error>(HasSubstr("different places")));
}
TEST(Emulator, SharedMemoryEnds) {
  EXPECT_THAT(cta(32, [] { static_cast<char*>(shared())[1024] = 0; }),
              ThrowsMessage<Error>(HasSubstr("beyond shared memory")));
  EXPECT_THAT(cta(32, [] { cp_async(shared_address(shared()) + 1024, nullptr); }),
              ThrowsMessage<Error>(HasSubstr("outside shared memory")));
}
TEST(Emulator, LaunchesAskForSharedMemory) {
  EXPECT_THAT([] { launch(nullptr, Grid(dim3(1), 32, 64 << 10, nullptr), [] {}); },
              ThrowsMessage<Error>(HasSubstr("than it asked for")));
}

// ---- TMA and its barriers

// [1][tokens][2][128] of 2 bytes each, every element its own index.
struct Elements {
  static constexpr int kTokens = 21, kHeads = 2, kColumns = 128;
  alignas(16) std::uint16_t values[kTokens][kHeads][kColumns];
  Elements() {
    for (int i = 0; i < kTokens * kHeads * kColumns; ++i) (&values[0][0][0])[i] = static_cast<std::uint16_t>(i + 1);
  }
  [[nodiscard]] CUtensorMap map(int rows) {
    const Rows all{values, 0, kHeads * kColumns, kColumns};
    return hopper::tensor_map(all, Storage::bf16, 1, kTokens, kHeads, kColumns, rows);
  }
};

// A box of 8 tokens of head 1 from `token` on, as it lies in shared memory at a multiple of 128 that is none of 1024.
std::vector<std::uint16_t> box_at(int token) {
  Elements elements;
  const CUtensorMap map = elements.map(8);
  std::vector<std::uint16_t> got(2 * 8 * 64);
  launch(nullptr, Grid(dim3(1), 32, 8192, nullptr), [&] {
    const std::uint32_t box = ((shared_address(shared()) + 1023) & ~1023u) + 256, barrier = box + 2048;
    if (threadIdx.x == 0) {
      mbarrier_init(barrier, 1);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(barrier, 2048);
      tma_load(box, &map, {0, token, 0, 1, 0}, barrier);
    }
    __syncwarp();
    mbarrier_wait(barrier, 0);
    for (std::uint32_t i = threadIdx.x; i < got.size(); i += 32) {
      const std::uint32_t at = box + i * 2;
      std::memcpy(&got[i], shared_at(at ^ (at >> 7 & 7) << 4, 2), 2);
    }
  });
  return got;
}
TEST(Engine, BoxesInAndOutsideTheTensor) {
  const Elements elements;
  for (const int token : {0, 5, -3, 17, 21, -8, 1 << 30})
    for (int i = 0; const std::uint16_t got : box_at(token)) {
      const std::int64_t t = token + std::int64_t{i / 64 % 8};
      const bool inside = t >= 0 && t < Elements::kTokens;
      EXPECT_EQ(got, inside ? elements.values[t][1][i / 512 * 64 + i % 64] : 0) << "token " << token << " place " << i;
      ++i;
    }
}

// Such a box, whose elements are bf16 and the number of their 16 bytes, goes to a tensor of ones, or is added to it.
struct BoxGoesOut {
  int token;
  bool add, publish = true, wait = true;
};
std::vector<float> tensor_after(const BoxGoesOut& x) {
  Elements elements;
  std::fill_n(&elements.values[0][0][0], sizeof elements / 2, std::bit_cast<std::uint16_t>(__float2bfloat16(1)));
  const CUtensorMap map = elements.map(8);
  launch(nullptr, Grid(dim3(1), 32, 8192, nullptr), [&] {
    if (threadIdx.x > 0) return;
    const std::uint32_t box = ((shared_address(shared()) + 1023) & ~1023u) + 256;
    for (std::uint32_t at = box, i = 0; i < 128; at += 16, ++i)
      std::fill_n(reinterpret_cast<__nv_bfloat16*>(to_be_published(at ^ (at >> 7 & 7) << 4)), 8, __float2bfloat16(i));
    if (x.publish) fence_proxy_async();
    tma_store(&map, box, {0, x.token, 0, 1, 0}, x.add);
    if (x.wait) bulk_wait();
  });
  std::vector<float> after;
  for (int i = 0; i < static_cast<int>(sizeof elements / 2); ++i)
    after.push_back(__bfloat162float(std::bit_cast<__nv_bfloat16>((&elements.values[0][0][0])[i])));
  return after;
}
TEST(Engine, BoxesGoToTheTensor) {
  for (const bool add : {false, true})
    for (const int token : {0, 5, -3, 17, 21, -8})
      for (int i = 0; const float got : tensor_after({token, add})) {
        const int t = i / 256 - token, column = i % 128;
        const bool inside = t >= 0 && t < 8 && i / 128 % 2 == 1;
        const auto own = static_cast<float>(column / 64 * 64 + t * 8 + column % 64 / 8);
        EXPECT_EQ(got, inside ? own + (add ? 1.f : 0.f) : 1.f) << "token " << token << " place " << i;
        ++i;
      }
  EXPECT_THAT([] { tensor_after({.token = 0, .add = true, .publish = false}); },
              ThrowsMessage<Error>(HasSubstr("no thread has published")));
  EXPECT_THAT([] { tensor_after({.token = 0, .add = false, .wait = false}); },
              ThrowsMessage<Error>(HasSubstr("on their way")));
}

// A producer fills two places with box after box; two warps add up all elements of each.
struct Ring {
  bool publish = true, wait_full = true, wait_empty = true, arrive = true, overwrite = false;
  int bytes = kBytes, arrivals = 2, full_parity = 0, empty_parity = 1;
  static constexpr int kBytes = 1024, kBoxes = 10;
};
void ring_kernel(const CUtensorMap* map, const Ring& x, std::int64_t* sums) {
  const std::uint32_t base = (shared_address(shared()) + 1023) & ~1023u, full = base + 2 * Ring::kBytes;
  const std::uint32_t empty = full + 16;
  if (threadIdx.x == 0) {
    for (int place = 0; place < 2; ++place) {
      mbarrier_init(full + 8 * place, 1);
      mbarrier_init(empty + 8 * place, x.arrivals);
    }
    if (x.publish) fence_mbarrier_init();
  }
  __syncthreads();
  for (int i = 0; i < Ring::kBoxes; ++i) {
    const std::uint32_t place = i % 2, parity = i / 2 % 2, box = base + place * Ring::kBytes;
    if (threadIdx.x == 0) {
      if (x.wait_empty) mbarrier_wait(empty + 8 * place, parity ^ x.empty_parity);
      mbarrier_arrive_expect_tx(full + 8 * place, x.bytes);
      tma_load(box, map, {0, i, 0, 1, 0}, full + 8 * place);
    } else if (threadIdx.x >= 32) {
      if (x.wait_full) mbarrier_wait(full + 8 * place, parity ^ x.full_parity);
      for (std::uint32_t at = threadIdx.x % 32 * 2; at < Ring::kBytes; at += 64) {
        std::uint16_t element;
        std::memcpy(&element, shared_at(box + at, 2), 2);
        sums[threadIdx.x - 32] += element;
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0 && x.arrive) mbarrier_arrive(empty + 8 * place);
      if (threadIdx.x == 32 && x.overwrite) std::memset(shared_at(empty, 8), 0, 8);
    }
  }
}
bool is_right(const Ring& x) {
  Elements elements;
  const CUtensorMap map = elements.map(4);
  std::vector<std::int64_t> sums(64);
  launch(nullptr, Grid(dim3(1), 96, 2 * Ring::kBytes + 1024 + 32, nullptr), [&] { ring_kernel(&map, x, sums.data()); });
  std::int64_t got = 0, want = 0;
  for (const std::int64_t sum : sums) got += sum;
  for (int box = 0; box < Ring::kBoxes; ++box)
    for (int t = box; t < box + 4; ++t)
      for (const std::uint16_t element : elements.values[t][1]) want += 2 * element;
  return got == want;
}
// Whether some order shows the mistake: an error, or a wrong answer.
bool is_seen(const Ring& x) {
  for (int order = 0; order < 20; ++order) {
    set_order(order);
    try {
      if (!is_right(x)) return true;
    } catch (const Error&) {
      return true;
    }
  }
  return false;
}
auto ring(const Ring& x) {
  return [=] {
    set_order(1);
    is_right(x);
  };
}

TEST(Engine, Ring) { EXPECT_FALSE(is_seen({})); }
TEST(Engine, FullPlacesAreWaitedFor) {
  EXPECT_TRUE(is_seen({.wait_full = false}));
  EXPECT_TRUE(is_seen({.full_parity = 1}));
}
TEST(Engine, EmptyPlacesAreWaitedFor) {
  EXPECT_TRUE(is_seen({.wait_empty = false}));
  EXPECT_TRUE(is_seen({.arrivals = 1}));
}
TEST(Engine, WaitsThatNeverEnd) {
  EXPECT_THAT(ring({.empty_parity = 0}),
              ThrowsMessage<Error>(HasSubstr("phase 0, which misses 2 arrivals and 0 bytes")));
  EXPECT_THAT(ring({.arrive = false}), ThrowsMessage<Error>(HasSubstr("misses 2 arrivals")));
  EXPECT_THAT(ring({.arrivals = 3}), ThrowsMessage<Error>(HasSubstr("misses 1 arrivals")));
  EXPECT_THAT(ring({.bytes = Ring::kBytes + 16}), ThrowsMessage<Error>(HasSubstr("misses 0 arrivals and 16 bytes")));
  EXPECT_THAT(ring({.bytes = Ring::kBytes - 16}), ThrowsMessage<Error>(HasSubstr("misses 0 arrivals and -16 bytes")));
}
TEST(Engine, FewerBytesThanComeEndAPhaseEarly) { EXPECT_TRUE(is_seen({.bytes = Ring::kBytes / 2})); }
TEST(Engine, BarriersArePublished) {
  EXPECT_THAT(ring({.publish = false}), ThrowsMessage<Error>(HasSubstr("has not published")));
}
TEST(Engine, BarriersAreNotOverwritten) {
  EXPECT_THAT(ring({.overwrite = true}), ThrowsMessage<Error>(HasSubstr("overwritten")));
}
TEST(Engine, BarriersAreStartedOnceAndUsedAsStarted) {
  EXPECT_THAT(cta(32, [] { mbarrier_wait(shared_address(shared()), 0); }),
              ThrowsMessage<Error>(HasSubstr("no barrier was started")));
  EXPECT_THAT(cta(32, [] { mbarrier_init(shared_address(shared()), 1); }),
              ThrowsMessage<Error>(HasSubstr("started again")));
  EXPECT_THAT(cta(1,
                  [] {
                    mbarrier_init(shared_address(shared()), 1);
                    mbarrier_arrive_expect_tx(shared_address(shared()), 16);
                    mbarrier_arrive(shared_address(shared()));
                  }),
              ThrowsMessage<Error>(HasSubstr("more arrivals")));
}
// One thread starts two boxes, the second so many bytes behind the first, and ends.
auto boxes(int apart) {
  return [=] {
    Elements elements;
    const CUtensorMap map = elements.map(4);
    launch(nullptr, Grid(dim3(1), 1, 4096, nullptr), [&] {
      const std::uint32_t base = (shared_address(shared()) + 127) & ~127u, barrier = base + 2048;
      mbarrier_init(barrier, 1);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(barrier, 2048);
      tma_load(base, &map, {}, barrier);
      tma_load(base + apart, &map, {}, barrier);
    });
  };
}
TEST(Engine, BoxesDoNotMeet) {
  EXPECT_THAT(boxes(512), ThrowsMessage<Error>(HasSubstr("another one is on its way")));
  EXPECT_THAT(boxes(1000), ThrowsMessage<Error>(HasSubstr("not aligned")));
  EXPECT_THAT(boxes(4096), ThrowsMessage<Error>(HasSubstr("outside shared memory")));
}
TEST(Engine, BlocksWaitForTheirBoxes) {
  EXPECT_THAT(boxes(1024), ThrowsMessage<Error>(HasSubstr("boxes of TMA on their way")));
}
TEST(Engine, TensorsThatItRefuses) {
  Elements elements;
  const auto made = [&](int offset, int stride, int rows) {
    return [=, &elements] {
      const Rows all{elements.values[0][0] + offset, 0, stride, 128};
      // A variable: g++ does not align a result that is thrown away.
      [[maybe_unused]] const CUtensorMap map = hopper::tensor_map(all, Storage::fp16, 1, 8, 2, 128, rows);
    };
  };
  EXPECT_NO_THROW(made(8, 264, 256)());
  EXPECT_THROW(made(4, 264, 256)(), LaunchError);
  EXPECT_THROW(made(8, 260, 256)(), LaunchError);
  EXPECT_THROW(made(8, 264, 257)(), LaunchError);
}
TEST(Engine, NeedsATensorMap) {
  EXPECT_THAT(cta(1,
                  [] {
                    static const char nothing[128] = {};
                    tma_load(512, nothing, {}, 1024);
                  }),
              ThrowsMessage<Error>(HasSubstr("no tensor map")));
  EXPECT_THAT(cta(1,
                  [] {
                    const char own[128] = {};
                    tma_load(512, own, {}, 1024);
                  }),
              ThrowsMessage<Error>(HasSubstr("own memory")));
}
TEST(Emulator, RegistersAreTakenOfThoseGiven) {
  EXPECT_NO_THROW(cta(512, [] { threadIdx.x < 128 ? setmaxnreg(32, false) : setmaxnreg(160, true); })());
  EXPECT_NO_THROW(cta(256, [] { threadIdx.x < 128 ? setmaxnreg(56, false, 2) : setmaxnreg(200, true, 2); })());
  EXPECT_THAT(cta(256, [] { threadIdx.x < 128 ? setmaxnreg(56, false, 2) : setmaxnreg(208, true, 2); }),
              ThrowsMessage<Error>(HasSubstr("for registers")));
  EXPECT_THAT(cta(512, [] { threadIdx.x < 128 ? setmaxnreg(32, false) : setmaxnreg(168, true); }),
              ThrowsMessage<Error>(HasSubstr("for registers")));
  EXPECT_THAT(cta(32, [] { setmaxnreg(100, false); }), ThrowsMessage<Error>(HasSubstr("setmaxnreg")));
}

}  // namespace
}  // namespace nsa::kernels::emulation
