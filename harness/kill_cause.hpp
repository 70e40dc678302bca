// Who ended a worker by SIGKILL, when it was not this program: the kernel for lack of memory, or somebody else. A
// process that is killed so cannot say anything itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "reports/model.hpp"

namespace harness {

struct MemoryPlaces {
  std::filesystem::path meminfo = "/proc/meminfo", vmstat = "/proc/vmstat", group_of_process = "/proc/self/cgroup",
                        groups = "/sys/fs/cgroup", kernel_log = "/dev/kmsg";
};

// How often the kernel has killed for lack of memory: in this process's control group (versions 1 and 2), and on the
// whole machine. Absent: not to be read here.
struct OutOfMemoryCounts {
  std::optional<std::int64_t> in_group, on_machine;
};
[[nodiscard]] OutOfMemoryCounts count_out_of_memory_kills(const MemoryPlaces& places = {});

// What a process of this control group may have: the group's limit or the machine's memory. 0: unknown.
[[nodiscard]] std::int64_t memory_bound(const MemoryPlaces& places = {});

struct Kill {
  bool out_of_memory = false;
  std::string why;         // one clause: what speaks for it
  reports::Json evidence;  // every reading
};

// `before`: counted when the worker was started. In this order: the kernel's log names the process; a kill was counted
// in the control group; one was counted on the machine, or the worker held >= 80 % of the memory bound.
[[nodiscard]] Kill find_kill_cause(pid_t process, std::int64_t max_rss_bytes, const OutOfMemoryCounts& before,
                                   const MemoryPlaces& places = {});

}  // namespace harness
