// Runs kernels on the CPU: one CTA at a time, every thread a fiber. See README.md for what that
// proves and what it cannot.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <set>
#include <source_location>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "nsa/kernels/plan/device.hpp"

namespace nsa::kernels::emulation {

// A kernel did what no GPU forgives; thrown by the launch.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The order in which CTAs and threads run from now on.
void set_order(std::uint64_t seed);
// Instead of plan/limits.hpp's, which only long sequences reach.
inline constexpr Limits kLowLimits{.joint_tiles = 0,
                                   .joint_tiles_a_head = 0,
                                   .first_tiles = 4,
                                   .joint_bytes = 0,
                                   .parts_bytes = 0,
                                   .sums_bytes = 0,
                                   .piece_rows = 320,
                                   .lists_bytes = 0,
                                   .partials_bytes = 1 << 20,
                                   .interval_steps = 0,
                                   .interval_tiles = 2,
                                   .few_keys_steps = 0,
                                   .few_keys_items = 4,
                                   .interval_sums_bytes = 0};
// What current_device() says: few SMs, so that a CTA has much to do.
inline constexpr Device kDevice{.hopper = true, .sm_count = 2, .limits = kLowLimits};

// ---- launches: translate.cmake makes `kernel | Grid(...) | arguments(...)` of kernel<<<...>>>(...)

struct Grid {
  dim3 blocks;
  int threads, shared_bytes;
  cudaStream_t stream;
  bool early = false;  // it may begin before the launch before it on its stream has ended
  std::source_location from;
  Grid(dim3 grid, unsigned block, std::int64_t shared, cudaStream_t on,
       const std::source_location& at = std::source_location::current())
      : blocks(grid), threads(static_cast<int>(block)), shared_bytes(static_cast<int>(shared)), stream(on), from(at) {}
};
// For a fork beside null, the main one: launches run in the order in which they are made, but only what the streams
// order may depend on it (launches.hpp).
cudaStream_t second_stream();
void launch(const void* kernel, const Grid& grid, const std::function<void()>& thread);
cudaError_t allow_shared(const void* kernel, int bytes);
// What was launched since the last call, by the names that the launch functions give to check_launch().
struct Launched {
  std::set<std::string> names;
  int kernels = 0;
};
Launched take_launched();

template <typename... Parameters>
struct Launch {
  void (*kernel)(Parameters...);
  Grid grid;
};
template <typename... Parameters>
Launch<Parameters...> operator|(void (*kernel)(Parameters...), const Grid& grid) {
  return {kernel, grid};
}
template <typename... Arguments>
std::tuple<Arguments...> arguments(const Arguments&... all) {
  return {all...};
}
template <typename... Parameters, typename... Arguments>
void operator|(const Launch<Parameters...>& x, const std::tuple<Arguments...>& all) {
  launch(reinterpret_cast<const void*>(x.kernel), x.grid, [&] { std::apply(x.kernel, all); });
}

// ---- what a thread can do

[[noreturn]] void fail(const std::string& what);
inline void require(bool holds, const char* otherwise) {
  if (!holds) fail(otherwise);
}
void cta_barrier();
void sync_warp();
void thread_fence();
void griddepcontrol_wait();
void griddepcontrol_launch_dependents();
void atomic_access(const void* at, std::size_t bytes);
// All threads of the warp come to the same call (`name`); the last one does the work with what each has brought.
void warp_barrier(const char* name, void* own = nullptr, void (*work)(void* const* lanes) = nullptr);
template <typename Lane, typename Work>
void together(const char* name, Lane& own, Work) {  // Work captures nothing
  warp_barrier(name, &own, [](void* const* lanes) {
    Lane* all[32];
    for (int i = 0; i < 32; ++i) all[i] = static_cast<Lane*>(lanes[i]);
    Work()(all);
  });
}

// Dynamic shared memory, an address in it, and the `bytes` there.
void* shared();
std::uint32_t shared_address(const void* pointer);
char* shared_at(std::uint32_t address, int bytes);

// What tests write around tensors, a NaN: a copy that reads nothing else is outside.
inline constexpr std::uint16_t kOutside = 0x7fc5;
void check_inside(const void* source);  // of 16 bytes

// ---- cp.async: between start and wait the destination is NaN

void cp_async(std::uint32_t destination, const void* source);  // 16 bytes; a null source: zeros
void cp_async_commit();
void cp_async_wait(int pending);
// The address of 16 bytes that the thread is about to write for a product to read.
char* to_be_published(std::uint32_t address);
// The thread's finished copies, and what it wrote to to_be_published(), become visible to products, and its
// barriers to TMA.
void fence_proxy_async();

// ---- barriers that count arrivals and bytes (mbarrier), barriers with a number; setmaxnreg

void mbarrier_init(std::uint32_t barrier, int arrivals);
void fence_mbarrier_init();
void mbarrier_arrive(std::uint32_t barrier);
void mbarrier_arrive_expect_tx(std::uint32_t barrier, int bytes);
void mbarrier_wait(std::uint32_t barrier, unsigned parity);
void setmaxnreg(int count, bool more, int ctas = 1);  // ctas: of an SM
void bar_sync_warpgroup(int number);                  // bar.sync of a warpgroup's threads
void bar_sync(int number, int threads);               // of so many threads
// Until a number in memory is this one; another thread, of this CTA or one before, passes it on.
void wait_for_turn(const int* number, int expected);
void pass_turn(int* number, int next);

// ---- TMA: the destination is NaN from the start until the bytes come, piece by piece in any order

void tma_load(std::uint32_t destination, const void* map, const int (&corner)[5], std::uint32_t barrier);
void bulk_load(std::uint32_t destination, const void* from, int bytes, std::uint32_t barrier);  // in one piece
// Published bytes to `to`, or added to the floats there: they are read when the thread waits for it.
void bulk_store(float* to, std::uint32_t from, int bytes, bool add);
// The same to a box of a tensor, or added in its type.
void tma_store(const void* map, std::uint32_t from, const int (&corner)[5], bool add);
void bulk_wait();

// ---- matrix products

using Wide = float (*)(std::uint16_t);  // of a storage type
// ldmatrix: four 8 x 8 matrices.
void ldmatrix(std::uint32_t (&r)[4], std::uint32_t address, bool transposed);
// mma.sync m16n8k16
void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, Wide wide);
// stmatrix: the 16 bytes that this lane writes, of the registers of all.
uint4 row_of_matrices(const std::uint32_t (&r)[4]);
// wgmma: between start and wait the accumulators are NaN. What is summed over, of the left operand and of the right
// one: both operands' columns; columns and rows; both operands' rows; the left one is in registers, and rows of the
// right one.
enum class Operands { columns, columns_rows, rows, registers };
void start_product(float* c, int columns, bool accumulate, Operands operands, const std::uint32_t* registers,
                   std::uint64_t a, std::uint64_t b, Wide wide);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int pending);

}  // namespace nsa::kernels::emulation
