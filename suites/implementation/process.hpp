// A Python program that serves one adapter: one line of JSON to it, one line back, and what it writes besides.
//
//   PYTHON -u HOST ADAPTER      NSA_ADAPTER_FDS="R,W,M": R to read requests from, W to write answers to, M the arena
//
// It is another's program in the end: it may die, fall silent, write without an end or leave children behind, and this
// process lives on. A thread of this process's own reads what it writes, and is the parent that the program dies with:
// whoever started it may be a thread that ends sooner.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "harness/kill_cause.hpp"
#include "harness/process.hpp"
#include "suites/implementation/spawn.hpp"
#include "suites/implementation/tail.hpp"

namespace suites::implementation {

class Process {
 public:
  using Seconds = std::chrono::duration<double>;
  struct Command {
    std::string python;  // looked for in PATH
    std::filesystem::path host, adapter;
    int arena = -1;  // a descriptor
  };

  // Throws ImplementationError "start".
  explicit Process(const Command& command);
  ~Process();  // kills the whole group
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // `line` without its end. The answer without its end, at most `patience` later. Throws ImplementationError "crashed",
  // "silent" or "protocol" (more than one line, a line without an end in sight); the process is ended then. Raises no
  // SIGPIPE, and a request that is larger than the pipe waits for its reader no longer than `patience`.
  [[nodiscard]] std::string exchange(std::string_view line, Seconds patience);

  // Called every second while an answer is waited for.
  void on_wait(std::function<void()> call) { waiting_ = std::move(call); }

  // Kills the whole group and waits for its leader; nothing is left of it. The second time it does nothing.
  void end();

  [[nodiscard]] bool running() const;  // false: it has died, or was ended
  [[nodiscard]] pid_t pid() const { return pid_; }
  // The last 64 KiB of standard output and error together, up to what it has written by now. From any thread.
  [[nodiscard]] std::string last_words();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Seen { ready, ended, late };

  struct Ends;  // the child's, open here until it has its own
  void keep(Ends ends, const Program& program, std::promise<pid_t> started);
  void drain();
  bool gulp();  // of its output, what there is; false at the end
  [[nodiscard]] Seen wait_for(int fd, short events, Clock::time_point deadline) const;
  void send(std::string_view text, Clock::time_point deadline, Seconds patience);
  [[nodiscard]] std::string receive(Clock::time_point deadline, Seconds patience);
  [[noreturn]] void fail(const char* kind, const std::string& message);
  [[noreturn]] void fail_dead(const std::string& when);

  pid_t pid_ = -1;
  harness::Fd pid_fd_;
  struct Death {
    std::string how;  // "killed by SIGSEGV (Segmentation fault)"
    std::string why;  // of a SIGKILL that was not ours: whether memory was lacking; else ""
  };
  std::optional<Death> death_;
  harness::KillWatch kill_watch_;
  harness::Fd requests_, answers_, output_;  // our ends
  harness::Fd requests_read_end_;            // kept open: writing raises no SIGPIPE then
  harness::Fd stop_;                         // an eventfd: the keeper may go
  std::mutex output_mutex_;                  // one reads it at a time, so that the order stays
  Tail tail_;
  std::function<void()> waiting_;
  std::thread keeper_;
};

}  // namespace suites::implementation
