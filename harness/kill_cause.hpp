// Who ended a worker by SIGKILL, when it was not this program: the kernel for lack of memory, or somebody else. A
// process that is killed so cannot say anything itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "harness/process.hpp"
#include "reports/model.hpp"

namespace harness {

struct MemoryPlaces {
  std::filesystem::path meminfo = "/proc/meminfo", vmstat = "/proc/vmstat", group_of_process = "/proc/self/cgroup",
                        groups = "/sys/fs/cgroup", kernel_log = "/dev/kmsg";
};

// What a process of this control group may have: the group's limit or the machine's memory. 0: unknown.
[[nodiscard]] std::int64_t memory_bound(const MemoryPlaces& places = {});

struct Kill {
  bool out_of_memory = false;
  std::string why;         // one clause: what speaks for it
  reports::Json evidence;  // every reading
};

// Looks when a worker is started, and again when it was killed.
class KillWatch {
 public:
  explicit KillWatch(MemoryPlaces places = {});

  // Speaks for a lack of memory, in this order: the kernel's log has named the process since; a kill was counted in the
  // control group; one was counted on the machine, where the group does not count; the worker held 80 % of the bound.
  [[nodiscard]] Kill look(pid_t process, std::int64_t max_rss_bytes) const;

 private:
  // How often the kernel has killed for lack of memory: in this process's control group (versions 1 and 2), and on the
  // whole machine. Absent: not to be read here.
  struct Counts {
    std::optional<std::int64_t> in_group, on_machine;
  };
  [[nodiscard]] Counts count() const;
  [[nodiscard]] std::optional<std::string> line_about(pid_t process) const;

  MemoryPlaces places_;
  Counts before_;
  Fd log_;  // at its end when the worker was started: numbers of processes are used again
};

}  // namespace harness
