// How busy the machine was while something ran, and whether that took time from it. Other processes that use CPUs
// are not enough for that, nor are own threads that wait for a CPU: they may wait for each other. Only both
// together are a load.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace base {

// Figures of a span of time. "Cores" are cores' worth of time: 1.5 is one and a half of them all the time.
struct Load {
  double wall_s = 0;
  int cores = 0;                  // that this process may run on; all that follows is about them
  double own_cores = 0;           // used by this process and the children that it collected
  double others_cores = 0;        // used by anybody else, the host's other machines included
  double steal_share = 0;         // of the CPUs' time, taken by the host for other machines
  std::optional<double> waiting;  // own threads that could run and waited for a CPU, on average; absent: not told here
  bool known = false;             // false: nothing above means anything
  std::string why_unknown = "not measured";

  // Of the time in which own threads could run, the share in which they waited instead.
  [[nodiscard]] std::optional<double> waited_share() const;
  // Others use CPUs, and it shows: own threads wait, the host takes CPUs away, or none is left. Unknown is not busy.
  [[nodiscard]] bool busy() const;
  // How many times as long as on a calm machine own work took at most, by the time for which own threads waited: 1
  // where the machine is not busy, or where hardly anything of ours wanted a CPU; infinite where the kernel does not
  // tell.
  [[nodiscard]] double slowdown() const;
  // Others use next to nothing, whatever this process does: nothing that runs now will be disturbed.
  [[nodiscard]] bool calm() const;
  // "other processes used 1.7 of 2 cores, threads waited 43 % of their time"
  [[nodiscard]] std::string describe() const;
};

// Where the figures come from; a test has its own.
struct LoadSources {
  std::filesystem::path stat = "/proc/stat", tasks = "/proc/self/task";
  std::vector<int> cpus = {};                          // empty: those that this process may run on
  std::function<double()> clock = {}, own_cpu_s = {};  // seconds; empty: the system's
  // Of several processes: their folders of tasks, asked for at each reading; empty: `tasks` alone.
  std::function<std::vector<std::filesystem::path>()> all_tasks = {};
};

// Measures from construction on. Costs two small files and one a thread at the start and for each read().
class LoadMeter {
 public:
  // The kernel counts in hundredths of a second: shorter spans say nothing.
  static constexpr double kShortest_s = 0.2;

  explicit LoadMeter(LoadSources sources = {});
  // Since construction, any number of times. Waits until the span is long enough to say something.
  [[nodiscard]] Load read() const;
  [[nodiscard]] double elapsed_s() const;

 private:
  struct Cpus {
    int count = 0;
    double busy_s = 0, steal_s = 0, all_s = 0;
  };
  struct Reading {
    double time = 0, own_cpu_s = 0;
    std::optional<Cpus> cpus;
    std::optional<std::map<pid_t, std::uint64_t>> delays;  // nanoseconds, by thread
  };
  [[nodiscard]] Reading take() const;
  [[nodiscard]] std::optional<Cpus> read_cpus() const;
  [[nodiscard]] std::optional<std::map<pid_t, std::uint64_t>> read_delays() const;

  LoadSources sources_;
  Reading begin_;
};

}  // namespace base
