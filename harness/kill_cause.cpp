#include "harness/kill_cause.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

namespace harness {

namespace fs = std::filesystem;
using reports::Json;

namespace {

constexpr double kNearlyAll = 0.8;
constexpr double kGiB = 1 << 30;

// The number behind `key` in a file of lines "key number".
std::optional<std::int64_t> number_of(const fs::path& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

std::optional<std::int64_t> first_number(const fs::path& file) {
  std::ifstream stream(file);
  std::int64_t value = 0;
  return stream >> value ? std::optional(value) : std::nullopt;
}

// The folders of this process's memory group, the innermost first. In a container the path of /proc/self/cgroup may be
// the host's, which is not to be seen here; the group is then what is mounted.
std::vector<fs::path> memory_groups(const MemoryPlaces& places) {
  std::vector<fs::path> found;
  std::ifstream stream(places.group_of_process);
  for (std::string line; std::getline(stream, line);) {  // "4:memory:/path" or "0::/path"
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const fs::path top = controllers.empty() ? places.groups : places.groups / "memory";
    for (fs::path path = line.substr(second + 1); path.has_relative_path(); path = path.parent_path())
      found.push_back(top / path.relative_path());
    found.push_back(top);
  }
  return found;
}

}  // namespace

KillWatch::KillWatch(MemoryPlaces places)
    : places_(std::move(places)),
      before_(count()),
      log_(open(places_.kernel_log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {  // others than root may not read it
  lseek(log_.get(), 0, SEEK_END);
}

KillWatch::Counts KillWatch::count() const {
  Counts counts;
  counts.on_machine = number_of(places_.vmstat, "oom_kill");
  for (const fs::path& group : memory_groups(places_)) {
    counts.in_group = number_of(group / "memory.events", "oom_kill");
    if (!counts.in_group) counts.in_group = number_of(group / "memory.oom_control", "oom_kill");
    if (counts.in_group) break;
  }
  return counts;
}

std::optional<std::string> KillWatch::line_about(pid_t process) const {
  const std::string wanted = fmt::format("Killed process {} ", process);
  char record[8192];  // one a read
  for (int i = 0; log_.get() >= 0 && i < 100'000; ++i) {
    const ssize_t length = ::read(log_.get(), record, sizeof record);
    if (length < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: records were overwritten meanwhile
    if (length <= 0) break;
    const std::string text(record, static_cast<std::size_t>(length));
    if (const auto at = text.find(wanted); at != std::string::npos) return text.substr(at, text.find('\n', at) - at);
  }
  return std::nullopt;
}

std::int64_t memory_bound(const MemoryPlaces& places) {
  std::int64_t bound = number_of(places.meminfo, "MemTotal:").value_or(0) * 1024;
  for (const fs::path& group : memory_groups(places))
    for (const char* name : {"memory.max", "memory.limit_in_bytes"})
      if (const auto limit = first_number(group / name); limit && *limit > 0)
        bound = bound > 0 ? std::min(bound, *limit) : *limit;
  return bound;
}

Kill KillWatch::look(pid_t process, std::int64_t max_rss_bytes) const {
  const Counts after = count();
  const std::int64_t bound = memory_bound(places_);
  const std::optional<std::string> line = line_about(process);
  const auto risen = [](const auto& from, const auto& to) { return from && to ? *to - *from : 0; };
  const std::int64_t in_group = risen(before_.in_group, after.in_group);
  const std::int64_t on_machine = risen(before_.on_machine, after.on_machine);
  const double share = bound > 0 ? static_cast<double>(max_rss_bytes) / static_cast<double>(bound) : 0;

  Kill kill;
  kill.evidence = {{"max_rss_bytes", max_rss_bytes},
                   {"memory_bound_bytes", bound},
                   {"out_of_memory_kills_in_control_group", after.in_group ? Json(in_group) : Json()},
                   {"out_of_memory_kills_on_machine", after.on_machine ? Json(on_machine) : Json()},
                   {"kernel_log", line ? Json(*line) : Json()}};
  const std::string held = fmt::format("it held {:.1f} GiB at most, of {:.1f} GiB that it may have",
                                       static_cast<double>(max_rss_bytes) / kGiB, static_cast<double>(bound) / kGiB);
  kill.out_of_memory = true;
  if (line)
    kill.why = fmt::format("the kernel's log says \"{}\"", *line);
  else if (in_group > 0)
    kill.why = fmt::format("the kernel killed {} time(s) for lack of memory in this control group meanwhile; {}",
                           in_group, held);
  else if (on_machine > 0 && !after.in_group)  // the group counts its own, whoever had taken the memory
    kill.why =
        fmt::format("the kernel killed {} time(s) for lack of memory on this machine meanwhile; {}", on_machine, held);
  else if (share >= kNearlyAll)
    kill.why = held;
  else {
    kill.out_of_memory = false;
    kill.why = fmt::format("nothing speaks for a lack of memory: {}", held);
  }
  return kill;
}

}  // namespace harness
