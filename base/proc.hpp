// What /proc says of processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace base {

struct ProcessStat {
  std::string name;  // may hold anything: spaces, parentheses, line breaks
  char state = '?';  // 'R', 'S', 'D', 'T', 'Z', ...
  pid_t parent = 0;
  double cpu_s = 0;        // its own, of all threads
  double ended_cpu_s = 0;  // of the children that it collected
};

// Of one process; nothing when there is none of that number here.
[[nodiscard]] std::optional<ProcessStat> process_stat(std::int64_t pid);
// The same of a folder like /proc/PID; nothing too when its file `stat` is not as the kernel writes it.
[[nodiscard]] std::optional<ProcessStat> process_stat(const std::filesystem::path& folder);

// Memory of this process that lies in RAM; nothing where /proc does not tell.
[[nodiscard]] std::optional<std::int64_t> resident_bytes();

}  // namespace base
