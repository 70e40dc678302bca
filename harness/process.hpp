// A child process in its own process group: its input, its standard output and error, and its events are three pipes.
// Wraps posix_spawn, pidfd, wait4 and /proc; nothing here knows what the child does.
//
// Dangers: the group is killed before the leader is reaped (a zombie keeps the id from being reused); pipes are read
// without blocking, because a grandchild may keep them open after the child is gone.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace harness {

using base::Fd;

struct Exit {
  bool by_signal = false;
  int value = 0;  // exit status or signal number
  double user_s = 0, system_s = 0;
  long max_rss_kib = 0;
};

class Process {
 public:
  static constexpr int kEventFd = 3;  // in the child

  // Runs `executable` with `argv`, and with `environment` ("NAME=value") beside this process's. Throws
  // InfrastructureError.
  Process(const std::string& executable, const std::vector<std::string>& argv,
          const std::vector<std::string>& environment = {});
  ~Process();  // kills what is left of the group
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool reaped() const { return reaped_; }          // then the number may be another process's
  [[nodiscard]] int pid_fd() const { return pid_fd_.get(); }     // readable when the child has ended
  [[nodiscard]] int output_fd() const { return output_.get(); }  // standard output and error
  [[nodiscard]] int event_fd() const { return events_.get(); }

  // Once: all that the child reads from standard input. Until then it waits there, and finds the end of the file if
  // this process dies. The pipe is made to hold it, so that a child that never reads blocks nobody; throws
  // InfrastructureError when the system allows no pipe of that size (1 MiB by default).
  void give(const std::string& input);

  void signal_group(int signal) const;
  // After pid_fd() became readable: kills the rest of the group and collects the exit.
  Exit reap();
  // CPU time of the child and all its descendants so far, those that ended and were collected too, in seconds.
  [[nodiscard]] double cpu_seconds() const;
  [[nodiscard]] std::vector<pid_t> tree() const;  // the child and its descendants that live

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  Fd pid_fd_, output_, events_;
  Fd input_, input_end_;  // the child's end is kept until all is written: writing cannot fail because the child is gone
};

// Appends to `buffer` what can be read now, at most `limit` bytes; false at the end of the file.
bool read_available(int fd, std::string& buffer, std::size_t limit = 1 << 20);

// The standard output of a short command, nullopt when it cannot be run, fails or takes longer than `seconds`.
[[nodiscard]] std::optional<std::string> output_of(const std::vector<std::string>& argv, double seconds);

// "SIGSEGV (Segmentation fault)".
[[nodiscard]] std::string signal_name(int signal);

}  // namespace harness
