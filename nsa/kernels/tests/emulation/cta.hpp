// What fibers.cpp, which runs a CTA, products.cpp, barriers.cpp, tma.cpp, races.cpp and launches.cpp
// know of each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace nsa::kernels::emulation {

// What memory holds before anything was written: a NaN in fp32, bf16 and fp16, and no index of anything.
inline constexpr std::uint32_t kRubbish = 0x7fc17fc1;

void spoil(char* at, std::size_t bytes);

// Shared memory as products see it: what cp.async wrote and fence_proxy_async() has shown, and TMA's boxes.
char* published_at(std::uint32_t address, int bytes);

// The random number that decides an order.
std::uint64_t draw();
// This thread stands still until another one, or TMA, wakes it.
void wait_here();
void wake(int first, int count);

// Dynamic shared memory of an H100, bytes.
constexpr int kSharedMost = 227 << 10;

// Of the threads, in one piece.
constexpr int kMostThreads = 1024;
constexpr std::size_t kStackBytes = 128 << 10;
extern char stacks[kMostThreads][kStackBytes];
inline bool on_a_stack(const void* at) {
  return static_cast<std::size_t>(static_cast<const char*>(at) - stacks[0]) < sizeof stacks;
}

// Memory of the program itself: constants, __shared__ (which is static), dynamic shared memory.
extern "C" char __executable_start, _end;  // by the linker
inline bool in_image(const void* at) {
  return static_cast<const char*>(at) >= &__executable_start && static_cast<const char*>(at) < &_end;
}
// For addr2line.
inline std::ptrdiff_t place_in_program(const void* code) {
  return static_cast<const char*>(code) - &__executable_start;
}

// Before and after a block.
void begin_products(int threads);
void end_products();
void begin_barriers(int threads);
void begin_tma();
void end_tma();

// Of a deadlock.
std::string describe_barriers();
// TMA uses a barrier: the thread that runs asks it to, and bytes have come.
void ask_for_copy(std::uint32_t barrier);
void mbarrier_complete_tx(std::uint32_t barrier, int bytes);
// Once a turn of the CTA's: whether TMA delivered something. It always does when all threads wait.
bool tma_turn(bool threads_wait);

}  // namespace nsa::kernels::emulation
