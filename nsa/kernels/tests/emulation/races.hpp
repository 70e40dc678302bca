// Races: two accesses to the same bytes, one of them a write, not both atomic, that no barrier orders. They are found
// by what orders them, not by the order in which the emulation happened to run them. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nsa/kernels/tests/emulation/emulator.hpp"

namespace nsa::kernels::emulation {

// Who accesses memory, and when.
struct Moment {
  std::uint32_t interval;            // between two barriers of a CTA; no two CTAs share one
  std::uint32_t warp_interval : 12;  // within it, between two barriers of the warp
  std::uint32_t thread : 10;
  std::uint32_t fences : 8;   // of the thread, so far
  std::uint32_t warp : 1;     // all lanes at once: a product
  std::uint32_t running : 1;  // a copy that nobody has waited for
  std::uint32_t step;         // of its warp, see Note [Clocks]
  bool operator==(const Moment&) const = default;
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

// Note [Clocks]
// A barrier that not all threads of a CTA come to together, one that counts arrivals or one with a number, orders
// what an arriving thread has done before what a waiting one does after. Who arrives begins a new step of its warp. A
// clock has for each thread the step that it was in when it last arrived, as far as that is known: all before has
// happened. Threads have clocks from the CTA's first such barrier on. Where all meet, no clock is needed.
using Clock = std::vector<std::uint32_t>;
void races_keep_clocks();
[[nodiscard]] bool races_have_clocks();
void races_arrive(Clock& barrier);
void races_learn(const Clock& barrier);
void races_meet(const std::vector<int>& threads);
// A copy that the thread has asked for makes this barrier's phase end.
void races_copy_arrives(Clock& barrier);

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
void race_written_by(Moment asked, const void* to, std::size_t bytes);

}  // namespace nsa::kernels::emulation
