#undef _FORTIFY_SOURCE  // its longjmp refuses to go to another stack
#include "nsa/kernels/tests/emulation/emulator.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "nsa/kernels/device/shared.hpp"
#include "nsa/kernels/tests/emulation/cta.hpp"
#include "nsa/kernels/tests/emulation/cuda.hpp"
#include "nsa/kernels/tests/emulation/launches.hpp"
#include "nsa/kernels/tests/emulation/races.hpp"

namespace nsa::kernels {

bool is_emulated() { return true; }
Device current_device() { return emulation::kDevice; }
cudaError_t grant_shared(const void* kernel, int bytes) { return emulation::allow_shared(kernel, bytes); }

namespace emulation {

alignas(16) char stacks[kMostThreads][kStackBytes];

namespace {

constexpr int kSharedUnasked = 48 << 10, kBase = 384, kBeyond = 4096;  // of an H100, bytes

// ---- state

// There is one GPU: the launches of several threads come one after the other.
std::recursive_mutex gpu;

struct Copy {
  std::uint32_t to;
  const void* from;
  Moment start;
  char bytes[16];
};
struct Fiber {
  jmp_buf at;
  bool begun = false, done = true, waits = false;
  std::vector<Copy> copies;
  std::vector<std::size_t> groups;         // where each group of copies that is on its way ends
  std::vector<std::uint32_t> unpublished;  // finished copies, and what else was written for products
};
struct Warp {
  int arrived = 0, ready = 0;
  const char* name = nullptr;
  void* lanes[32];
};
std::mt19937_64 order(1);
std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Warp> warps;
std::map<const void*, int> allowed;
const std::function<void()>* body = nullptr;
jmp_buf scheduler;
ucontext_t outside;
int self = -1;  // or the scheduler
int threads = 0, arrived = 0, alive = 0, shared_bytes = 0;
std::string failure;
std::source_location launched_from;
Launched launched;
alignas(1024) char memory[kBase + kSharedMost + kBeyond];  // as plain code sees it
alignas(1024) char published[sizeof memory];               // as products see it

Warp& own_warp() { return warps[self / 32]; }

// ---- fibers

void leave() {
  races_settle();
  if (_setjmp(fibers[self]->at) == 0) _longjmp(scheduler, 1);
}
void entry() {
  for (;;) {
    (*body)();
    fibers[self]->done = true;
    if (!fibers[self]->copies.empty()) fail("a thread ends with copies on their way");
    leave();
  }
}
[[noreturn]] void stop() {
  fibers.clear();
  const std::string file = launched_from.file_name();
  throw Error(std::exchange(failure, "") + " (CTA " + std::to_string(blockIdx.x) + "," + std::to_string(blockIdx.y) +
              "," + std::to_string(blockIdx.z) + ", thread " + std::to_string(std::exchange(self, -1)) +
              ", launched by " + file.substr(file.rfind('/') + 1) + ":" + std::to_string(launched_from.line()) + ")");
}
void resume(int thread) {
  self = thread;
  threadIdx.x = static_cast<unsigned>(thread);
  races_thread(thread);
  launches_thread(thread);
  Fiber& fiber = *fibers[thread];
  if (_setjmp(scheduler) == 0) {
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks[thread];
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
    swapcontext(&outside, &context);
  }
  if (!failure.empty()) stop();
  self = -1;
}

// Warps run by priorities that change now and then, so that some are far ahead of others; now and then a lane is late.
void run_block() {
  warps.assign((threads + 31) / 32, Warp());
  begin_products(threads);
  begin_barriers(threads);
  begin_tma();
  races_begin_block(threads);
  launches_begin_block(threads);
  arrived = 0;
  alive = threads;
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = *fibers[i];
    fiber.done = fiber.waits = false;
    fiber.unpublished.clear();
    ++warps[i / 32].ready;
  }
  std::vector<int> priority(warps.size());
  for (std::size_t i = 0; i < priority.size(); ++i) priority[i] = static_cast<int>(i);
  for (std::uint64_t turn = 0; alive > 0; ++turn) {
    const std::uint64_t random = order();
    if (turn == 0 || random % 32 == 0) std::shuffle(priority.begin(), priority.end(), order);
    const auto next = std::find_if(priority.begin(), priority.end(), [](int w) { return warps[w].ready > 0; });
    if (tma_turn(next == priority.end())) continue;
    if (next == priority.end()) {
      fibers.clear();
      throw Error("deadlock: " + std::to_string(alive) + " threads wait, " + std::to_string(arrived) +
                  " of them at a barrier of the CTA" + describe_barriers());
    }
    const int first = *next * 32, size = std::min(32, threads - first);
    const int late = random % 4 == 0 ? static_cast<int>(random >> 24 & 31) : -1;
    for (int i = 0; i < 32; ++i) {
      const int lane = static_cast<int>((random >> 8) + i * ((random >> 16) | 1)) & 31;
      if (lane >= size || lane == late || fibers[first + lane]->done || fibers[first + lane]->waits) continue;
      resume(first + lane);
      if (!fibers[first + lane]->done) continue;
      --alive;
      --warps[*next].ready;
    }
  }
  end_products();
  end_tma();
  launches_end_block();
}

}  // namespace

std::uint64_t draw() { return order(); }
void spoil(char* at, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 4) std::memcpy(at + i, &kRubbish, 4);
}
void wait_here() {
  fibers[self]->waits = true;
  --own_warp().ready;
  leave();
}
void wake(int first, int count) {
  for (int i = first; i < first + count; ++i)
    if (fibers[i]->waits) {
      fibers[i]->waits = false;
      ++warps[i / 32].ready;
    }
}

// ---- launches

void set_order(std::uint64_t seed) { order.seed(seed); }

Launched take_launched() {
  const std::lock_guard lock(gpu);
  return std::exchange(launched, {});
}

cudaError_t allow_shared(const void* kernel, int bytes) {
  const std::lock_guard lock(gpu);
  if (bytes > kSharedMost) throw Error("more shared memory than an SM has: " + std::to_string(bytes));
  allowed[kernel] = bytes;
  return cudaSuccess;
}

void launch(const void* kernel, const Grid& grid, const std::function<void()>& thread) {
  const std::lock_guard lock(gpu);
  const auto limit = allowed.find(kernel);
  if (grid.shared_bytes > (limit == allowed.end() ? kSharedUnasked : limit->second))
    throw Error("a launch with more shared memory than it asked for: " + std::to_string(grid.shared_bytes));
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0 || grid.blocks.y > 65535 ||
      grid.blocks.z > 65535 || grid.threads <= 0 || grid.threads > kMostThreads)
    throw Error("a grid that no GPU accepts");
  gridDim = grid.blocks;
  blockDim = dim3(static_cast<unsigned>(grid.threads));
  threads = grid.threads;
  shared_bytes = grid.shared_bytes;
  body = &thread;
  launched_from = grid.from;
  ++launched.kernels;
  const RaceWatch races;
  const LaunchWatch order_of_launches(grid.stream, grid.early, grid.from);
  while (static_cast<int>(fibers.size()) < threads) fibers.push_back(std::make_unique<Fiber>());
  std::vector<std::uint64_t> blocks(static_cast<std::size_t>(grid.blocks.x) * grid.blocks.y * grid.blocks.z);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  std::shuffle(blocks.begin(), blocks.end(), order);
  const std::size_t spoiled = (shared_bytes + 3) / 4 * 4 + kBeyond;
  for (const std::uint64_t block : blocks) {
    blockIdx.x = static_cast<unsigned>(block % grid.blocks.x);
    blockIdx.y = static_cast<unsigned>(block / grid.blocks.x % grid.blocks.y);
    blockIdx.z = static_cast<unsigned>(block / grid.blocks.x / grid.blocks.y);
    spoil(memory + kBase, spoiled);
    spoil(published + kBase, spoiled);
    run_block();
    for (std::size_t i = (shared_bytes + 3) / 4 * 4; i < spoiled; i += 4)
      if (std::memcmp(memory + kBase + i, &kRubbish, 4) != 0) throw Error("a write beyond shared memory");
  }
}

// ---- threads

void fail(const std::string& what) {
  failure = what;
  if (self < 0) stop();
  _longjmp(scheduler, 1);
}

void cta_barrier() {
  if (++arrived < threads) return wait_here();
  arrived = 0;
  races_block_barrier();
  wake(0, threads);
}

void warp_barrier(const char* name, void* own, void (*work)(void* const* lanes)) {
  Warp& warp = own_warp();
  if (warp.arrived == 0) warp.name = name;
  if (warp.name != name && std::strcmp(warp.name, name) != 0)
    fail(std::string("threads of a warp at different places: ") + name + ", " + warp.name);
  warp.lanes[self % 32] = own;
  if (++warp.arrived < 32) return wait_here();
  warp.arrived = 0;
  if (work) work(warp.lanes);
  wake(self / 32 * 32, 32);
}

void sync_warp() {
  warp_barrier("__syncwarp", nullptr, [](void* const*) { races_warp_barrier(); });
}

void* shared() { return memory + kBase; }
std::uint32_t shared_address(const void* pointer) {
  const char* const at = static_cast<const char*>(pointer);
  require(at >= memory + kBase && at <= memory + kBase + shared_bytes, "not an address in dynamic shared memory");
  return static_cast<std::uint32_t>(at - memory);
}
char* shared_at(std::uint32_t address, int bytes) {
  require(address >= kBase && static_cast<int>(address) + bytes <= kBase + shared_bytes,
          "an access outside shared memory");
  return memory + address;
}

char* published_at(std::uint32_t address, int bytes) {
  shared_at(address, bytes);
  return published + address;
}

// ---- cp.async

void check_inside(const void* source) {
  std::uint16_t around[8];
  std::fill_n(around, 8, kOutside);
  require(std::memcmp(source, around, 16) != 0, "a copy from outside a tensor");
}
void cp_async(std::uint32_t destination, const void* source) {
  require(destination % 16 == 0 && reinterpret_cast<std::uintptr_t>(source) % 16 == 0, "a copy that is not aligned");
  Copy copy{destination, source, race_moment(), {}};
  if (source) {
    check_inside(source);
    launch_reads(source, 16);
    std::memcpy(copy.bytes, source, sizeof copy.bytes);
  }
  race_copy_starts(shared_at(destination, 16), 16);
  spoil(memory + destination, 16);
  spoil(published + destination, 16);
  fibers[self]->copies.push_back(copy);
}
void cp_async_commit() { fibers[self]->groups.push_back(fibers[self]->copies.size()); }
void cp_async_wait(int pending) {
  Fiber& own = *fibers[self];
  const std::size_t groups = own.groups.size();
  if (groups <= static_cast<std::size_t>(pending)) {
    if (pending == 0) require(own.copies.empty(), "a wait for copies that were not committed");
    return;
  }
  const std::size_t done = own.groups[groups - 1 - pending];
  for (std::size_t i = 0; i < done; ++i) {
    const Copy& copy = own.copies[i];
    std::memcpy(memory + copy.to, copy.bytes, 16);
    if (copy.from) race_read_since(copy.start, copy.from, 16);
    race_written(memory + copy.to, 16);
    own.unpublished.push_back(copy.to);
  }
  own.copies.erase(own.copies.begin(), own.copies.begin() + static_cast<std::ptrdiff_t>(done));
  own.groups.erase(own.groups.begin(), own.groups.end() - pending);
  for (std::size_t& end : own.groups) end -= done;
}
char* to_be_published(std::uint32_t address) {
  require(address % 16 == 0, "a store that is not aligned");
  char* const at = shared_at(address, 16);
  spoil(published + address, 16);
  fibers[self]->unpublished.push_back(address);
  return at;
}
void fence_proxy_async() {
  for (const std::uint32_t at : fibers[self]->unpublished) {
    std::memcpy(published + at, memory + at, 16);
    race_written(published + at, 16);
  }
  fibers[self]->unpublished.clear();
  fence_mbarrier_init();
}

}  // namespace emulation

void check_launch(const char* kernel) {
  const std::lock_guard lock(emulation::gpu);
  emulation::launched.names.insert(kernel);
}

}  // namespace nsa::kernels

// ---- what the launch functions ask for

const char* cudaGetErrorString(cudaError_t) { return "an error that the emulation does not make"; }
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  using namespace nsa::kernels::emulation;
  const std::lock_guard lock(gpu);
  const LaunchWatch watch(stream, false, std::source_location::current());
  launch_writes(to, bytes);
  std::memset(to, value, bytes);
  return cudaSuccess;
}
