// The shadow of memory: for every word who accessed it last. The kernels are compiled with -fsanitize=thread, which
// calls the functions at the end of this file before every load and store; ThreadSanitizer itself is not there.
#include "nsa/kernels/tests/emulation/races.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <cstring>
#include <memory>
#include <ostream>
#include <sstream>
#include <utility>
#include <vector>

#include "nsa/kernels/tests/emulation/cta.hpp"
#include "nsa/kernels/tests/emulation/cuda.hpp"
#include "nsa/kernels/tests/emulation/launches.hpp"
#include "nsa/kernels/tests/emulation/shadow.hpp"

namespace nsa::kernels::emulation {
namespace {

constexpr std::size_t kMostPages = 5500;  // 200 MB of shadow, 1 GB if all are accessed by bytes

// Two readers stand for all: two of different warps, or two lanes of a warp since its last barrier, if there are such;
// a write that is ordered after both is ordered after every read. The same for atomic accesses. What is gone is 0.
struct Last {
  Moment two[2];
};
struct Cell {
  Moment write;
  Last reads;
};
struct Page {
  explicit Page(const char* at) : shared(in_image(at)) {}
  bool shared;  // memory of a CTA, not of the grid
  Cell words[kPageWords] = {};
  std::bitset<kPageWords> split;  // words that are accessed by bytes
  std::unique_ptr<Cell[]> bytes;
  std::unique_ptr<Last[]> atomics;  // of each word

  void split_word(std::size_t word) {
    if (!bytes) bytes = std::make_unique<Cell[]>(kPageBytes);
    std::fill_n(&bytes[word * kWordBytes], kWordBytes, words[word]);
    split[word] = true;
  }
};

Shadow<Page> shadow;

Moment now;
std::uint32_t interval = 0, launch_begin = 0, block_begin = 0;
thread_local bool judging = false;  // in a launch of this host thread: another one is no thread of a CTA
const char* code = nullptr;         // that the plain access returns to
std::array<std::uint32_t, 32> warp_intervals, steps;
std::vector<Clock> clocks;  // of the CTA's threads, or none
struct Block {
  std::uint32_t begin;
  uint3 index;
};
std::vector<Block> blocks;  // of the launch

// Note [Fences]
// A thread of one CTA sees what a thread of another one wrote if the writer's fence, an atomic access to some
// location, one to the same location by the reader's CTA and the reader's fence follow each other; within a CTA,
// where they are of different threads, with a barrier in between.
struct Release {  // by an atomic access
  const void* at;
  std::uint32_t begin, end;          // the intervals of its CTA so far
  std::vector<std::uint8_t> fences;  // of each thread, that come before
};
struct Acquire {
  Moment when;
  std::size_t release;
};
struct Thread {
  std::uint8_t fences = 0, fences_before = 0;  // the latter: at the last barrier
  std::size_t acquired = 0;                    // acquires that its last fence comes after
};
std::vector<Release> releases;  // of the launch
std::vector<Acquire> acquires;  // of the CTA
std::vector<Thread> threads;
int fences = 0;  // of the launch

void join(Clock& to, const Clock& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
}
// Its own clock tells those who learn of it of all that the thread has done.
void begin_step(std::size_t thread) { clocks[thread][thread] = ++steps[thread / 32]; }
bool known(const Moment& a, const Moment& b) {
  if (clocks.empty()) return false;
  const Clock& clock = clocks[b.thread];
  if (!a.warp) return clock[a.thread] > a.step;
  const auto first = clock.begin() + a.thread / 32 * 32;
  return std::any_of(first, std::min(first + 32, clock.end()), [&](std::uint32_t step) { return step > a.step; });
}

bool released(Moment a, Moment b) {
  for (std::size_t i = 0; i < threads[b.thread].acquired; ++i) {
    const Release& x = releases[acquires[i].release];
    if (x.begin <= a.interval && a.interval <= x.end && a.fences < x.fences[a.thread]) return true;
  }
  return false;
}

// Whether a comes before b in every order of threads and CTAs; here it ran before b.
inline bool precedes(Moment a, Moment b, bool shared) {
  if (a.interval < (shared ? block_begin : launch_begin)) return true;
  if (a.interval < block_begin) return !clocks.empty() || released(a, b);
  if (a.running) return false;
  if (a.interval != b.interval) return a.interval < b.interval;
  if (a.thread / 32 == b.thread / 32 &&
      (a.thread == b.thread || a.warp_interval != b.warp_interval || a.warp || b.warp))
    return true;
  return known(a, b);
}

const Block& block_of(Moment x) {
  std::size_t i = blocks.size() - 1;
  while (blocks[i].begin > x.interval) --i;
  return blocks[i];
}
// What was done to memory, and by whom.
struct Deed {
  const char* what;
  Moment by;
};
std::ostream& operator<<(std::ostream& to, const Deed& x) {
  const uint3 block = block_of(x.by).index;
  return to << x.what << " by " << (x.by.running ? "a running copy of " : "") << (x.by.warp ? "a product of " : "")
            << "thread " << x.by.thread << " of CTA " << block.x << "," << block.y << "," << block.z;
}
[[noreturn]] void report(const char* at, const Deed& a, const Deed& b) {
  std::ostringstream what;
  const char* const dynamic = static_cast<const char*>(shared());
  what << "a race: ";
  if (at >= dynamic && at < dynamic + kSharedMost)
    what << "shared memory + " << at - dynamic;
  else
    what << (in_image(at) ? "static shared memory " : "global memory ") << static_cast<const void*>(at);
  what << " is " << a << " and " << b << ", in no order";
  if (code) what << " (addr2line 0x" << std::hex << place_in_program(code) << ")";
  fail(what.str());
}

// A second write, unordered with the first: no race if it writes the same value, which is known after it.
struct Rewrite {
  const char *at, *code;
  std::size_t bytes;
  char value[kWordBytes];
  Moment first, second;
};
std::vector<Rewrite> rewrites;
unsigned replaced = 0;

// Bytes and their shadow.
struct Place {
  Cell& cell;
  Last* atomics;  // or null
  bool shared;
  const char* at;
  std::size_t bytes;

  void check(const char* before, Moment a, const char* after, Moment b) const {
    if (!precedes(a, b, shared)) report(at, {before, a}, {after, b});
  }
  void check(const char* before, const Last& a, const char* after, Moment b) const {
    for (const Moment x : a.two) check(before, x, after, b);
  }
  void remember(Last& last, Moment x) const {
    for (Moment& before : last.two)
      if (precedes(before, x, shared)) {
        before = x;
        return;
      }
    // Of another warp, or no better. Where there are clocks, two do not stand for all: now these, now those.
    if (last.two[0].thread / 32 == last.two[1].thread / 32)
      last.two[1] = x;
    else if (!clocks.empty())
      last.two[++replaced % 2] = x;
  }

  void read(Moment x) const {
    if (cell.reads.two[0] == x) return;
    check("written", cell.write, "read", x);
    if (atomics) check("changed atomically", *atomics, "read", x);
    remember(cell.reads, x);
  }
  void write(Moment x) const {
    if (!precedes(cell.write, x, shared)) {
      if (cell.write.running || x.running) report(at, {"written", cell.write}, {"written", x});
      rewrites.push_back({at, code, bytes, {}, cell.write, x});
      std::memcpy(rewrites.back().value, at, bytes);
    }
    check("read", cell.reads, "written", x);
    cell = {x, {}};
    if (atomics) {
      check("changed atomically", *atomics, "written", x);
      *atomics = {};
    }
  }
  void change(Moment x) const {
    check("written", cell.write, "changed atomically", x);
    check("read", cell.reads, "changed atomically", x);
    remember(*atomics, x);
  }
};

// A word before and after what was last done to one: the same is done to all that are like it.
struct Example {
  Cell before, after;
  bool known = false, shared = false;
};
template <typename Each>
void for_places(const void* first, std::size_t bytes, Example& example, Each&& each) {
  if (!judging) return;
  if (!rewrites.empty()) races_settle();
  const char* at = static_cast<const char*>(first);
  const char* const end = at + bytes;
  while (at < end) {
    Page& page = shadow.of(at);
    do {
      const std::size_t byte = reinterpret_cast<std::uintptr_t>(at) % kPageBytes, word = byte / kWordBytes;
      Last* const atomics = page.atomics ? &page.atomics[word] : nullptr;
      if (!page.split[word] && (byte % kWordBytes != 0 || end - at < kWordBytes)) page.split_word(word);
      if (page.split[word]) {
        each(Place{page.bytes[byte], atomics, page.shared, at, 1});
        at += 1;
      } else {
        Cell& cell = page.words[word];
        if (example.known && example.shared == page.shared && !atomics &&
            std::memcmp(&cell, &example.before, sizeof cell) == 0) {
          cell = example.after;
        } else {
          example.before = cell;
          each(Place{cell, atomics, page.shared, at, kWordBytes});
          example.after = cell;
          example.known = !atomics && rewrites.empty();
          example.shared = page.shared;
        }
        at += kWordBytes;
      }
    } while (at < end && reinterpret_cast<std::uintptr_t>(at) % kPageBytes != 0);
  }
}

template <typename Each>
void for_places(const void* first, std::size_t bytes, Each&& each) {
  Example example;
  for_places(first, bytes, example, each);
}

// By compiled code, which goes on at `caller`.
template <typename Each>
void plain(const void* at, std::size_t bytes, const void* caller, Each&& each) {
  if (!judging || on_a_stack(at)) return;
  code = static_cast<const char*>(caller);
  for_places(at, bytes, each);
  code = nullptr;
}
void plain_read(const void* at, std::size_t bytes, const void* caller) {
  launch_reads(at, bytes, caller);
  plain(at, bytes, caller, [](const Place& place) { place.read(now); });
}
void plain_write(const void* at, std::size_t bytes, const void* caller) {
  launch_writes(at, bytes, caller);
  plain(at, bytes, caller, [](const Place& place) { place.write(now); });
}

}  // namespace

// ---- what orders accesses

RaceWatch::RaceWatch() {
  launch_begin = interval + 1;
  fences = 0;
  releases.clear();
  blocks.clear();
  rewrites.clear();
  code = nullptr;
  shadow.forget_beyond(kMostPages);
}
RaceWatch::~RaceWatch() { judging = false; }
void races_begin_block(int count) {
  judging = true;
  block_begin = ++interval;
  blocks.push_back({block_begin, blockIdx});
  warp_intervals = {};
  steps = {};
  clocks.clear();
  acquires.clear();
  threads.assign(count, {});
}
void races_thread(int thread) {
  now = {};
  now.interval = interval;
  now.warp_interval = warp_intervals[thread / 32];
  now.thread = thread;
  now.fences = threads[thread].fences;
  now.step = steps[thread / 32];
}
void races_block_barrier() {
  ++interval;
  for (Thread& thread : threads) thread.fences_before = thread.fences;
  races_thread(static_cast<int>(now.thread));
}
void races_warp_barrier() {
  const std::size_t first = now.thread / 32 * 32, end = std::min(first + 32, clocks.size());
  if (!clocks.empty()) {
    Clock all = clocks[first];
    for (std::size_t lane = first; lane < end; ++lane) join(all, clocks[lane]);
    std::fill(all.begin() + first, all.begin() + end, ++steps[first / 32]);
    std::fill(clocks.begin() + first, clocks.begin() + end, all);
  }
  ++warp_intervals[now.thread / 32];
  races_thread(static_cast<int>(now.thread));
}

void races_keep_clocks() {
  if (clocks.empty()) clocks.assign(threads.size(), Clock(threads.size()));
}
bool races_have_clocks() { return !clocks.empty(); }
void races_arrive(Clock& barrier) {
  barrier.resize(clocks.size());
  begin_step(now.thread);
  join(barrier, clocks[now.thread]);
  races_thread(static_cast<int>(now.thread));
}
void races_learn(const Clock& barrier) {
  if (!barrier.empty()) join(clocks[now.thread], barrier);
}
void races_meet(const std::vector<int>& arrived) {
  races_keep_clocks();
  Clock all(clocks.size());
  for (const int thread : arrived) {
    begin_step(static_cast<std::size_t>(thread));
    join(all, clocks[thread]);
  }
  for (const int thread : arrived) clocks[thread] = all;
  races_thread(static_cast<int>(now.thread));
}
void races_copy_arrives(Clock& barrier) {
  barrier.resize(clocks.size());
  std::uint32_t& step = barrier[now.thread];
  step = std::max(step, now.step + 1);
}

void races_settle() {
  for (const Rewrite& x : std::exchange(rewrites, {}))
    if (std::memcmp(x.at, x.value, x.bytes) != 0) {
      code = x.code;
      report(x.at, {"written", x.first}, {"written", x.second});
    }
}

void thread_fence() {
  ++fences;
  Thread& own = threads[now.thread];
  now.fences = ++own.fences;
  while (own.acquired < acquires.size()) {
    const Moment when = acquires[own.acquired].when;
    if (when.interval == now.interval && when.thread != now.thread) break;
    ++own.acquired;
  }
}

// ---- accesses

Moment race_moment() { return now; }
void race_read(const void* at, std::size_t bytes) {
  for_places(at, bytes, [](const Place& place) { place.read(now); });
}
void race_read_of_lane(int lane, const void* at, std::size_t bytes) {
  Moment moment = now;
  moment.thread = now.thread / 32 * 32 + lane;
  for_places(at, bytes, [&](const Place& place) { place.read(moment); });
}
void race_read_since(Moment start, const void* at, std::size_t bytes) {
  static Moment last_start, last_end;
  static Example example;  // a product reads thousands of words, a few at a time
  Moment end = now;
  end.warp = start.warp;
  example.known &= start == last_start && end == last_end;
  last_start = start, last_end = end;
  for_places(at, bytes, example, [&](const Place& place) {
    place.check("written", place.cell.write, "read", start);
    place.read(end);
  });
}
void race_check_written(Moment before, const void* at, std::size_t bytes) {
  static Moment last;
  static Example example;
  example.known &= before == last;
  last = before;
  for_places(at, bytes, example, [&](const Place& place) { place.check("written", place.cell.write, "read", before); });
}
void race_copy_starts(const void* to, std::size_t bytes) {
  Moment moment = now;
  moment.running = true;
  for_places(to, bytes, [&](const Place& place) { place.write(moment); });
}
void race_written(const void* to, std::size_t bytes) { race_written_by(now, to, bytes); }
void race_written_by(Moment asked, const void* to, std::size_t bytes) {
  for_places(to, bytes, [&](const Place& place) { place.cell.write = asked; });
}

void atomic_access(const void* at, std::size_t bytes) {
  launch_writes(at, bytes);
  Page& page = shadow.of(static_cast<const char*>(at));
  if (!page.atomics) page.atomics = std::make_unique<Last[]>(kPageWords);
  for_places(at, bytes, [](const Place& place) { place.change(now); });
  if (fences == 0) return;
  for (std::size_t i = 0; i < releases.size(); ++i)
    if (releases[i].at == at) acquires.push_back({now, i});
  Release own{at, block_begin, interval, {}};
  for (std::size_t i = 0; i < threads.size(); ++i)
    own.fences.push_back(i == now.thread ? threads[i].fences : threads[i].fences_before);
  releases.push_back(std::move(own));
}

}  // namespace nsa::kernels::emulation

// ---- called by compiled kernels

extern "C" {
using nsa::kernels::emulation::plain_read, nsa::kernels::emulation::plain_write;
#define NSA_CALLED(kind, name, bytes) \
  void __tsan_##name(void* at) { plain_##kind(at, bytes, __builtin_return_address(0)); }
#define NSA_CALLED_FOR(bytes)                    \
  NSA_CALLED(read, read##bytes, bytes)           \
  NSA_CALLED(write, write##bytes, bytes)         \
  NSA_CALLED(read, unaligned_read##bytes, bytes) \
  NSA_CALLED(write, unaligned_write##bytes, bytes)
NSA_CALLED_FOR(1)
NSA_CALLED_FOR(2)
NSA_CALLED_FOR(4)
NSA_CALLED_FOR(8)
NSA_CALLED_FOR(16)
void __tsan_read_range(void* at, std::size_t bytes) { plain_read(at, bytes, __builtin_return_address(0)); }
void __tsan_write_range(void* at, std::size_t bytes) { plain_write(at, bytes, __builtin_return_address(0)); }
void __tsan_vptr_update(void**, void*) {}  // by tests, of their own classes
void __tsan_init() {}
}
