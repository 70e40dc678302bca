// Barriers in shared memory that count arrivals and bytes (mbarrier), barriers of warpgroups with a number, and the
// registers that warps pass on.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "nsa/kernels/tests/emulation/cta.hpp"
#include "nsa/kernels/tests/emulation/cuda.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/emulation/launches.hpp"
#include "nsa/kernels/tests/emulation/races.hpp"

namespace nsa::kernels::emulation {
namespace {

// What a barrier's eight bytes hold: a write over them shows.
constexpr std::uint64_t kMark = 0x7fc27fc27fc27fc2;

struct Barrier {
  int arrivals;            // that end a phase
  int missing;             // of them in the running phase
  int bytes = 0;           // that are expected and have not come
  unsigned phase = 0;      // the running one
  unsigned author;         // the thread that started it
  bool published = false;  // TMA may use it
  std::vector<int> waiting;
  Clock arrived, ended;  // of all who have arrived, now and when the last phase ended
};
std::map<std::uint32_t, Barrier> barriers;

Barrier& barrier_at(std::uint32_t address) {
  require(address % 8 == 0, "a barrier that is not aligned");
  const bool marked = std::memcmp(shared_at(address, 8), &kMark, 8) == 0;
  const auto found = barriers.find(address);
  require(found != barriers.end(), "no barrier was started here");
  require(marked, "a barrier was overwritten");
  return found->second;
}
void end_phase_when_complete(Barrier& x) {
  if (x.missing > 0 || x.bytes != 0) return;
  ++x.phase;
  x.ended = x.arrived;
  x.missing = x.arrivals;
  for (const int thread : x.waiting) wake(thread, 1);
  x.waiting.clear();
}
void expect(Barrier& x, int bytes) {
  x.bytes += bytes;
  require(x.bytes > -(1 << 20) && x.bytes < 1 << 20, "a barrier cannot count so many bytes");
}

// ---- barriers with a number

constexpr int kNumbers = 16, kWarpgroup = 128;
struct Meeting {
  int warpgroup = -1, threads = 0;
  std::vector<int> arrived;
};
Meeting meetings[kNumbers];

// ---- turns

std::vector<int> waiting_for_turns;

// ---- registers

constexpr int kRegisters = 64 << 10;  // per SM
std::vector<int> registers;           // of each thread; before the first setmaxnreg as one CTA has them
int sharing;                          // the SM, CTAs
int unused_registers;
std::vector<int> waiting_for_registers;

void share_registers(std::size_t threads, int ctas) {
  sharing = ctas;
  registers.assign(threads, std::min(kRegisters / static_cast<int>(threads) / ctas, 255) / 8 * 8);
}

}  // namespace

void begin_barriers(int threads) {
  barriers.clear();
  std::fill_n(meetings, kNumbers, Meeting());
  waiting_for_turns.clear();
  share_registers(static_cast<std::size_t>(threads), 1);
  unused_registers = 0;
  waiting_for_registers.clear();
}

std::string describe_barriers() {
  std::string text;
  for (const auto& [address, x] : barriers) {
    if (x.waiting.empty()) continue;
    text += "; " + std::to_string(x.waiting.size()) + " at the barrier at " + std::to_string(address) + " for phase " +
            std::to_string(x.phase) + ", which misses " + std::to_string(x.missing) + " arrivals and " +
            std::to_string(x.bytes) + " bytes";
  }
  for (int number = 0; number < kNumbers; ++number)
    if (!meetings[number].arrived.empty())
      text += "; " + std::to_string(meetings[number].arrived.size()) + " of " +
              std::to_string(meetings[number].threads) + " at barrier " + std::to_string(number);
  if (!waiting_for_turns.empty()) text += "; " + std::to_string(waiting_for_turns.size()) + " for their turn";
  if (!waiting_for_registers.empty()) text += "; " + std::to_string(waiting_for_registers.size()) + " for registers";
  return text;
}

void mbarrier_init(std::uint32_t address, int arrivals) {
  require(address % 8 == 0, "a barrier that is not aligned");
  require(arrivals > 0 && arrivals < 1 << 20, "a barrier of so many arrivals");
  std::memcpy(shared_at(address, 8), &kMark, 8);
  const bool is_new = barriers.insert({address, {arrivals, arrivals, 0, 0, threadIdx.x, false, {}, {}, {}}}).second;
  require(is_new, "a barrier that runs is started again");
  races_keep_clocks();
}
void fence_mbarrier_init() {
  for (auto& [address, x] : barriers) x.published |= x.author == threadIdx.x;
}

void mbarrier_arrive_expect_tx(std::uint32_t address, int bytes) {
  Barrier& x = barrier_at(address);
  require(x.missing > 0, "more arrivals at a barrier than end its phase");
  expect(x, bytes);
  races_arrive(x.arrived);
  --x.missing;
  end_phase_when_complete(x);
}
void mbarrier_arrive(std::uint32_t address) { mbarrier_arrive_expect_tx(address, 0); }
void mbarrier_wait(std::uint32_t address, unsigned parity) {
  require(parity <= 1, "a parity that is neither 0 nor 1");
  // Looks again when it has been woken: who is late may find the next phase ended too, and waits on.
  for (;;) {
    Barrier& x = barrier_at(address);
    if ((x.phase & 1) != parity) return races_learn(x.ended);
    x.waiting.push_back(static_cast<int>(threadIdx.x));
    wait_here();
  }
}
void ask_for_copy(std::uint32_t address) {
  Barrier& x = barrier_at(address);
  require(x.published, "TMA is given a barrier that its thread has not published");
  races_copy_arrives(x.arrived);
}
void mbarrier_complete_tx(std::uint32_t address, int bytes) {
  Barrier& x = barrier_at(address);
  expect(x, -bytes);
  end_phase_when_complete(x);
}

void bar_sync(int number, int threads) {
  require(number >= 1 && number < kNumbers, "a barrier with a number that is not 1 to 15");
  Meeting& x = meetings[number];
  if (x.arrived.empty()) x.threads = threads;
  require(x.threads == threads && threads % 32 == 0, "a barrier of one number for different numbers of threads");
  x.arrived.push_back(static_cast<int>(threadIdx.x));
  if (static_cast<int>(x.arrived.size()) < threads) return wait_here();
  races_meet(x.arrived);
  for (const int thread : x.arrived) wake(thread, 1);
  x.arrived.clear();
}
void bar_sync_warpgroup(int number) {
  require(number >= 1 && number < kNumbers, "a warpgroup's barrier with a number that is not 1 to 15");
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  Meeting& x = meetings[number];
  if (x.warpgroup < 0) x.warpgroup = warpgroup;
  require(x.warpgroup == warpgroup, "two warpgroups at a barrier of the same number");
  bar_sync(number, kWarpgroup);
}

void wait_for_turn(const int* number, int expected) {
  launch_reads(number, sizeof *number);
  while (*number != expected) {
    waiting_for_turns.push_back(static_cast<int>(threadIdx.x));
    wait_here();
  }
}
void pass_turn(int* number, int next) {
  launch_writes(number, sizeof *number);
  *number = next;
  for (const int thread : waiting_for_turns) wake(thread, 1);
  waiting_for_turns.clear();
}

void setmaxnreg(int count, bool more, int ctas) {
  require(count % 8 == 0 && count >= 24 && count <= 256, "setmaxnreg of a number that is not one of 24, 32 .. 256");
  warp_barrier(more ? "setmaxnreg.inc" : "setmaxnreg.dec");
  if (ctas != sharing) {
    require(sharing == 1, "setmaxnreg for different numbers of CTAs");
    share_registers(registers.size(), ctas);
  }
  int& own = registers[threadIdx.x];
  require(more ? count >= own : count <= own, "setmaxnreg in the wrong direction");
  while (count - own > unused_registers) {
    waiting_for_registers.push_back(static_cast<int>(threadIdx.x));
    wait_here();
  }
  unused_registers -= count - own;
  own = count;
  if (more) return;
  for (const int thread : waiting_for_registers) wake(thread, 1);
  waiting_for_registers.clear();
}

}  // namespace nsa::kernels::emulation
