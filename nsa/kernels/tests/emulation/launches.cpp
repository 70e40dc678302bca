#include "nsa/kernels/tests/emulation/launches.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nsa/kernels/launch/fork.hpp"
#include "nsa/kernels/launch/launch_runtime.hpp"
#include "nsa/kernels/tests/emulation/cta.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/emulation/shadow.hpp"

namespace nsa::kernels {
namespace emulation {
namespace {

constexpr int kStreams = 2;                // the main one, null, and second_stream()
constexpr std::size_t kMostPages = 16384;  // 64 MB of shadow, three times that if all is read while there is a fork

struct Page {
  explicit Page(const char*) {}
  std::uint32_t writer[kPageWords] = {};  // the last launch, by number; 0: none
  // While there is a fork: each stream's last launch that read.
  std::unique_ptr<std::uint32_t[][kPageWords]> readers;
};
Shadow<Page> shadow;

struct Past {
  int stream = 0;
  std::source_location from;
};
std::vector<Past> launches(1);  // by number
std::uint32_t forked = 0;       // the first launch since the fork, or 0: there is none
// Of each stream the last launch that began as usual, or whose threads said that the next one may begin only after they
// had waited: when the next one begins early, all before that launch have ended.
std::uint32_t chains[kStreams];

std::uint32_t own = 0;              // the launch that runs, or did last
thread_local bool running = false;  // a launch of this host thread: another one is no thread of a CTA
bool early = false;
bool patient = false, hurries = false;  // let the next one begin: after the wait, before it
std::uint32_t ended = 0;   // those before this one have, of its stream, as far as the thread that runs may know
std::vector<bool> waited;  // of the CTA's threads
unsigned self = 0;

int number_of(cudaStream_t stream) {
  if (stream && stream != second_stream()) throw Error("a stream that the emulation does not know");
  return stream ? 1 : 0;
}
bool has_ended(std::uint32_t launch) {
  if (launch == 0 || launch == own) return true;
  return launch < ended && (!forked || launch < forked || launches[launch].stream == launches[own].stream);
}
// Nothing of a launch that began as usual, without a fork, can be too soon.
bool all_have_ended() { return !forked && !early; }

std::string describe(std::uint32_t launch) {
  const std::source_location& from = launches[launch].from;
  const std::string file = from.file_name();
  return "launch " + std::to_string(launch) + " (" + file.substr(file.rfind('/') + 1) + ":" +
         std::to_string(from.line()) + ")";
}
[[noreturn]] void report(const char* at, const char* done, std::uint32_t by, const char* doing, const void* code) {
  std::ostringstream what;
  what << "launches in no order: global memory " << static_cast<const void*>(at) << " is " << done << " by "
       << describe(by) << " and " << doing << " by " << describe(own);
  if (early && !waited[self]) what << " before griddepcontrol_wait()";
  if (code) what << " (addr2line 0x" << std::hex << place_in_program(code) << ")";
  fail(what.str());
}

template <typename Each>
void for_words(const void* first, std::size_t bytes, Each&& each) {
  const char* at = static_cast<const char*>(first);
  if (!running || on_a_stack(at) || in_image(at)) return;
  const char* const end = at + bytes;
  at -= reinterpret_cast<std::uintptr_t>(at) % kWordBytes;
  while (at < end) {
    Page& page = shadow.of(at);
    do {
      each(page, reinterpret_cast<std::uintptr_t>(at) % kPageBytes / kWordBytes, at);
      at += kWordBytes;
    } while (at < end && reinterpret_cast<std::uintptr_t>(at) % kPageBytes != 0);
  }
}

}  // namespace

cudaStream_t second_stream() {
  static char place;
  return reinterpret_cast<cudaStream_t>(&place);
}

LaunchWatch::LaunchWatch(cudaStream_t stream, bool begins_early, const std::source_location& from) {
  const int number = number_of(stream);
  if (number != 0 && !forked) throw Error("a launch on the second stream without a fork");
  own = static_cast<std::uint32_t>(launches.size());
  launches.push_back({number, from});
  // Behind another host thread's launch it begins as usual: what the host itself has written in between, which nobody
  // watches, may lie where that launch wrote.
  static std::thread::id last;
  const auto host = std::this_thread::get_id();
  early = std::exchange(last, host) == host && begins_early;
  patient = hurries = false;
  if (!early) chains[number] = own;
  if (all_have_ended()) shadow.forget_beyond(kMostPages);  // nothing is lost
  ended = own;
  running = true;
}
LaunchWatch::~LaunchWatch() {
  running = false;
  if (patient && !hurries) chains[launches[own].stream] = own;
}
void launches_begin_block(int threads) { waited.assign(threads, false); }
void launches_thread(int thread) {
  self = static_cast<unsigned>(thread);
  ended = early && !waited[self] ? chains[launches[own].stream] : own;
}
void launches_end_block() {
  if (early && std::find(waited.begin(), waited.end(), true) == waited.end())
    throw Error("a CTA that begins early ends without griddepcontrol_wait()");
}
void griddepcontrol_launch_dependents() { (early && !waited[self] ? hurries : patient) = true; }
void griddepcontrol_wait() {
  waited[self] = true;
  ended = own;
}

void launch_reads(const void* at, std::size_t bytes, const void* code) {
  if (all_have_ended()) return;
  for_words(at, bytes, [&](Page& page, std::size_t word, const char* place) {
    if (!has_ended(page.writer[word])) report(place, "written", page.writer[word], "read", code);
    if (!forked) return;
    if (!page.readers) page.readers = std::make_unique<std::uint32_t[][kPageWords]>(kStreams);
    page.readers[launches[own].stream][word] = own;
  });
}
void launch_writes(const void* at, std::size_t bytes, const void* code) {
  for_words(at, bytes, [&](Page& page, std::size_t word, const char* place) {
    if (early && !waited[self]) fail("a kernel that begins early writes before griddepcontrol_wait()");
    if (!has_ended(page.writer[word])) report(place, "written", page.writer[word], "written", code);
    page.writer[word] = own;
    if (!page.readers) return;
    for (int i = 0; i < kStreams; ++i)
      if (!has_ended(page.readers[i][word])) report(place, "read", page.readers[i][word], "written", code);
  });
}

namespace {

// Launches do not come this way (headers/nsa/kernels/device/early.cuh): they run where they are made.
class NoRuntime final : public LaunchRuntime {
 public:
  bool may_collect(cudaStream_t) override { return false; }
  int device() override { return 0; }
  cudaError_t launch(const LaunchCall&, cudaStream_t) override { return cudaErrorNotSupported; }
  cudaError_t make(const Chain&, ChainGraph&) override { return cudaErrorNotSupported; }
  cudaError_t set(const ChainGraph&, std::size_t, const LaunchCall&) override { return cudaErrorNotSupported; }
  cudaError_t start(const ChainGraph&, cudaStream_t) override { return cudaErrorNotSupported; }
  void destroy(ChainGraph&) override {}
  void forget_error() override {}
  const char* describe(cudaError_t) override { return "the emulation has no such launches"; }
};

}  // namespace
}  // namespace emulation

LaunchRuntime& launch_runtime() {
  static emulation::NoRuntime runtime;
  return runtime;
}

void wait_for(cudaStream_t, cudaEvent_t event) {
  if (event) throw emulation::Error("events are not emulated");
}

Fork::Fork(cudaStream_t main, cudaStream_t side) : main_(main), side_(side ? side : main) {
  if (side_ == main_) return;
  if (emulation::forked) throw emulation::Error("a fork within a fork");
  emulation::forked = static_cast<std::uint32_t>(emulation::launches.size());
}
Fork::~Fork() {
  if (!joined_) join();
}
void Fork::join() {
  joined_ = true;
  if (side_ != main_) emulation::forked = 0;
}

}  // namespace nsa::kernels
