// Races: two accesses to the same bytes, one of them a write, not both atomic, that no barrier orders. They are found
// by what orders them, not by the order in which the emulation happened to run them. Blocks that start a barrier which
// counts arrivals (barriers.cpp) are not judged: the order that those make is not known here. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nsa/kernels/emulation/emulator.hpp"

namespace nsa::kernels::emulation {

// Who accesses memory, and when.
struct Moment {
  std::uint64_t interval : 32;       // between two barriers of a block; no two blocks share one
  std::uint64_t warp_interval : 12;  // within it, between two barriers of the warp
  std::uint64_t thread : 10;
  std::uint64_t fences : 8;   // of the thread, so far
  std::uint64_t warp : 1;     // all lanes at once: a product
  std::uint64_t running : 1;  // a copy that its thread has not waited for
};

// ---- what orders accesses

// A launch. Accesses outside launches are not looked at.
class RaceWatch {
 public:
  RaceWatch();
  RaceWatch(const RaceWatch&) = delete;
  ~RaceWatch();
};
void races_begin_block(int threads);
void races_thread(int thread);  // it runs from now on
void races_block_barrier();
void races_warp_barrier();  // of its warp
void races_settle();        // before another one runs
void races_leave_block();   // it starts a barrier that counts: until its end nothing is judged

// ---- accesses of what is not plain code: the compiler tells races.cpp of every plain load and store

Moment race_moment();
void race_read(const void* at, std::size_t bytes);
void race_read_of_lane(int lane, const void* at, std::size_t bytes);
// By what ran since `start`: a product, a copy.
void race_read_since(Moment start, const void* at, std::size_t bytes);
void race_check_written(Moment before, const void* at, std::size_t bytes);
void race_copy_starts(const void* to, std::size_t bytes);
// By the end of a copy, or its publication; whether it may was asked at the start.
void race_written(const void* to, std::size_t bytes);

}  // namespace nsa::kernels::emulation
