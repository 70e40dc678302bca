#include "base/proc.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace base {

std::optional<ProcessStat> process_stat(std::int64_t pid) {
  return process_stat(std::filesystem::path(fmt::format("/proc/{}", pid)));
}

// "PID (NAME) STATE PARENT ...": the 14th to 17th are times in user and in system, its own and of its children, in
// ticks.
std::optional<ProcessStat> process_stat(const std::filesystem::path& folder) {
  static const auto ticks_per_s = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::ostringstream read;  // empty where the process ends just now; an iterator over the file would throw
  read << std::ifstream(folder / "stat").rdbuf();
  const std::string text = read.str();
  const std::size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  ProcessStat stat;
  stat.name = text.substr(open + 1, close - open - 1);
  std::istringstream rest(text.substr(close + 1));
  std::string skipped;
  rest >> stat.state >> stat.parent;
  for (int field = 5; field < 14; ++field) rest >> skipped;
  double user = 0, system = 0, ended_user = 0, ended_system = 0;
  if (!(rest >> user >> system >> ended_user >> ended_system)) return std::nullopt;
  stat.cpu_s = (user + system) / ticks_per_s;
  stat.ended_cpu_s = (ended_user + ended_system) / ticks_per_s;
  return stat;
}

std::optional<std::int64_t> resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0, resident = 0;
  if (!(file >> pages >> resident)) return std::nullopt;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace base
