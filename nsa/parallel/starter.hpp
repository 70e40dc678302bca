// Starts the ranks of one machine, watches them, ends them all, and says how each ended. No torch.
//
// A rank gets a signal when its starter dies, however that dies (PR_SET_PDEATHSIG). The ranks are in a process group of
// their own each, so that Ctrl-C reaches the starter alone, which passes it on.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace nsa::parallel {

struct RankProgram {
  std::vector<std::string> argv;                   // argv[0] is the path of the program
  std::map<std::string, std::string> environment;  // beside this process's own, in place of it
  int output = -1, error = -1;                     // standard streams; -1: this process's
};

struct RankEnd {
  int rank = 0;
  pid_t pid = 0;
  bool by_signal = false;
  int value = 0;             // exit status or signal
  bool ended_by_us = false;  // by Ranks::kill
  bool passed_on = false;    // by a signal of Ranks::signal(), before it could heed it
  double after_s = 0;        // since the start
  [[nodiscard]] bool well() const { return !by_signal && value == 0; }
};
[[nodiscard]] bool is_stopped(pid_t pid);                // by SIGSTOP or its like
[[nodiscard]] std::string describe(const RankEnd& end);  // "rank 2 (pid 4711) was killed by SIGKILL after 3.2 s"

class Ranks {
 public:
  // Starts all. Throws std::system_error when one cannot be started, and then none is left.
  // `on_orphaned`: what a rank gets when this process dies, perhaps once for each thread of this process.
  explicit Ranks(const std::vector<RankProgram>& programs, int on_orphaned = SIGTERM);
  ~Ranks();  // kills what is left
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // The next that ended; nothing when none did in this time, or none is left.
  [[nodiscard]] std::optional<RankEnd> wait(std::chrono::milliseconds longest);
  void signal(int number);  // to all that live
  // SIGKILL to all that live, or to those that are stopped, and to what they started.
  void kill(bool only_stopped = false);
  [[nodiscard]] std::size_t alive() const;
  [[nodiscard]] std::vector<pid_t> pids() const;  // by rank; 0 for one that has ended

 private:
  struct One {
    pid_t pid = 0;
    int fd = -1;  // of the process
    bool killed = false;
  };
  std::vector<One> ranks_;
  std::set<int> passed_on_;
  std::chrono::steady_clock::time_point began_;
};

struct WatchOptions {
  std::chrono::milliseconds grace{30'000};  // after the first that ended badly, for the others to end by themselves;
                                            // one that is stopped (SIGSTOP) cannot, and gets 3 s
  std::function<std::optional<int>()> signal_to_pass_on = {};  // asked often; each signal given once
  std::function<void(const RankEnd&)> ended = {};              // as they end
};
// Until none is left. In the order in which they ended.
std::vector<RankEnd> watch(Ranks& ranks, const WatchOptions& options);

}  // namespace nsa::parallel
