#include "nsa/train/run/stacks.hpp"

#include <cxxabi.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

namespace nsa::train {

namespace {

constexpr int kFrames = 64;
constexpr auto kPatience = std::chrono::milliseconds(500);

// What a handler may touch: filled by the thread that was asked.
void* frames[kFrames];
std::atomic<int> frame_count{-1};
std::atomic<long> asked{0};

void write_down(int /*signal*/) {
  if (::syscall(SYS_gettid) == asked.load()) frame_count = ::backtrace(frames, kFrames);
}

std::string first_line(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

// "program(_ZN3nsa...+0x1a) [0x...]" with the name made readable.
std::string readable(const std::string& symbol) {
  const auto begin = symbol.find('(') + 1, end = symbol.find_first_of("+)", begin);
  if (begin == 0 || end == std::string::npos || end == begin) return symbol;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol.substr(begin, end - begin).c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? symbol.substr(0, begin) + name.get() + symbol.substr(end) : symbol;
}

std::string stack_of(long thread) {
  frame_count = -1;
  asked = thread;
  if (thread == ::syscall(SYS_gettid))
    frame_count = ::backtrace(frames, kFrames);
  else if (::syscall(SYS_tgkill, ::getpid(), thread, SIGRTMIN + 5) != 0)
    return "  (has ended)\n";
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (frame_count < 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  asked = 0;
  const int count = frame_count;
  if (count < 0) return "  (does not answer)\n";
  std::string text;
  const std::unique_ptr<char*, decltype(&std::free)> symbols(::backtrace_symbols(frames, count), &std::free);
  for (int i = 0; symbols && i < count; ++i) text += "  " + readable(symbols.get()[i]) + "\n";
  return text;
}

}  // namespace

std::string all_stacks() {
  void* once[1];
  (void)::backtrace(once, 1);  // loads what backtrace() needs; a handler must not
  struct sigaction action {
  }, before{};
  action.sa_handler = write_down;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGRTMIN + 5, &action, &before);
  std::string text;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const long thread = std::stol(task.path().filename());
    const std::string stat = first_line(task.path() / "stat");
    const auto state = stat.rfind(") ");
    text +=
        fmt::format("thread {} {}, state {}, waits in {}\n", thread, first_line(task.path() / "comm"),
                    state == std::string::npos ? "?" : stat.substr(state + 2, 1), first_line(task.path() / "wchan"));
    text += stack_of(thread);
  }
  sigaction(SIGRTMIN + 5, &before, nullptr);
  return text;
}

}  // namespace nsa::train
