#include "fuzz/driver.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string_view>
#include <system_error>

namespace fuzz {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kThrew = 3;  // exit status of a child whose target threw

// What the child leaves for its parent, however it ends.
struct Shared {
  std::atomic<std::uint64_t> number;  // of the input that is being read
  std::atomic<std::uint64_t> read;    // inputs that are done
  std::atomic<bool> done;             // the child came to its own end: a reader that calls exit(0) has not
  char what[512];                     // of the exception
};

class Mapping {
 public:
  Mapping() {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    shared_ = new (memory) Shared{};
  }
  ~Mapping() { munmap(shared_, sizeof(Shared)); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Shared* operator->() const { return shared_; }

 private:
  Shared* shared_;
};

std::size_t address_space() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// From here on one input has this long; the default actions of the two signals end the process.
void wind_clocks(const Limits& limits) {
  const itimerval cpu{.it_interval = {}, .it_value = {.tv_sec = limits.cpu_s, .tv_usec = 0}};
  const itimerval wall{.it_interval = {}, .it_value = {.tv_sec = limits.wall_s, .tv_usec = 0}};
  setitimer(ITIMER_PROF, &cpu, nullptr);
  setitimer(ITIMER_REAL, &wall, nullptr);
}

[[noreturn]] void be_child(const Limits& limits, Mapping& shared, const std::function<void()>& work) {
  const rlimit memory{address_space() + limits.bytes, address_space() + limits.bytes};
  const rlimit core{0, 0};
  setrlimit(RLIMIT_AS, &memory);
  setrlimit(RLIMIT_CORE, &core);
  if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(kThrew);  // --help among arguments prints
  for (const int number : {SIGPROF, SIGALRM}) std::signal(number, SIG_DFL);
  try {
    work();
    shared->done = true;
    _exit(0);
  } catch (const std::exception& error) {
    std::snprintf(shared->what, sizeof shared->what, "%s", error.what());
  } catch (...) {
    std::snprintf(shared->what, sizeof shared->what, "something that is no std::exception");
  }
  _exit(kThrew);
}

// "" when the child did its work.
std::string how_it_ended(int status, const Limits& limits, const Mapping& shared) {
  if (shared->done) return "";
  if (WIFEXITED(status) && WEXITSTATUS(status) == kThrew) {
    if (std::string_view(shared->what) == std::bad_alloc().what())
      return fmt::format("asked for more than {} MiB", limits.bytes >> 20);
    return fmt::format("threw what it does not document: {}", shared->what);
  }
  if (WIFEXITED(status)) return fmt::format("ended the process with status {}", WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  if (number == SIGPROF) return fmt::format("took more than {} s of processor time", limits.cpu_s);
  if (number == SIGALRM) return fmt::format("took more than {} s", limits.wall_s);
  return fmt::format("died of signal {} ({})", number, strsignal(number));
}

std::string in_child(const Limits& limits, Mapping& shared, const std::function<void()>& work) {
  std::fflush(nullptr);  // or the child would write it a second time
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) be_child(limits, shared, work);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  return how_it_ended(status, limits, shared);
}

}  // namespace

Outcome fuzz(const Target& target, std::uint64_t seed, double seconds, const Limits& limits, std::size_t most) {
  const Mutator mutator(target.corpus, target.words, seed);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  Outcome outcome;
  Mapping shared;
  std::uint64_t next = 0;
  while (outcome.failures.size() < most && (next < target.corpus.size() || Clock::now() < end)) {
    const std::string what = in_child(limits, shared, [&] {
      for (std::uint64_t i = next; i < target.corpus.size() || Clock::now() < end; ++i) {
        shared->number = i;
        const std::string input = mutator.input(i);
        wind_clocks(limits);
        target.read(input);
        ++shared->read;
      }
    });
    if (what.empty()) break;
    outcome.failures.push_back({shared->number, mutator.input(shared->number), what});
    next = shared->number + 1;
  }
  outcome.inputs = shared->read + outcome.failures.size();
  return outcome;
}

std::string try_input(const Target& target, const std::string& input, const Limits& limits) {
  Mapping shared;
  return in_child(limits, shared, [&] {
    wind_clocks(limits);
    target.read(input);
  });
}

}  // namespace fuzz
