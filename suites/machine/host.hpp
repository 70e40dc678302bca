// Memory, shared memory and cores of the host, as this process may use them: a container's limits count,
// not the machine's size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "suites/machine/inspection.hpp"

namespace suites::machine {

struct HostState {
  std::int64_t memory_bytes = 0, available_bytes = 0;  // /proc/meminfo
  std::optional<std::int64_t> limit_bytes;             // of the control group; absent: none
  std::int64_t used_of_limit_bytes = 0;                // by everything in that group
  std::int64_t shared_bytes = 0;                       // size of /dev/shm; 0: there is none
  int cores = 1;                                       // that this process may be scheduled on
  std::optional<double> cpu_quota;                     // cores' worth of time that the control group allows

  // What can still be taken: available, and within the limit.
  [[nodiscard]] std::int64_t free_bytes() const;
  // Cores' worth of time, rounded down, at least 1.
  [[nodiscard]] int usable_cores() const;
};
struct HostPlaces {
  std::filesystem::path meminfo = "/proc/meminfo", control_group = "/sys/fs/cgroup", shared = "/dev/shm";
};
// Control groups of version 2 (memory.max, memory.current, cpu.max) and of version 1.
[[nodiscard]] HostState look_at_host(const HostPlaces& places = {});

struct HostNeed {
  std::int64_t memory_bytes = std::int64_t{4} << 30;  // LibTorch with CUDA loaded, the data, the report
  int gpus = 0;                                       // more than one exchange data through shared memory
};
[[nodiscard]] Inspection judge_host(const HostState& state, const HostNeed& need);

}  // namespace suites::machine
