#include "suites/probes/gpu_processes.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>

#include "base/proc.hpp"

namespace suites::probes {

namespace {

constexpr std::size_t kCommandLength = 200;

std::string name_of(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  return name;
}

std::string command_of(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", pid), std::ios::binary);
  std::string text(kCommandLength, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::string user_of(std::int64_t pid) {
  struct stat folder {};
  if (stat(fmt::format("/proc/{}", pid).c_str(), &folder) != 0) return "";
  passwd entry{}, *found = nullptr;
  std::array<char, 4096> buffer{};
  getpwuid_r(folder.st_uid, &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? fmt::format("user {}", folder.st_uid) : found->pw_name;
}

char state_of(std::int64_t pid) { return base::process_stat(pid).value_or(base::ProcessStat{}).state; }

ProcessOnGpu describe_process(std::int64_t pid, std::optional<std::uint64_t> bytes) {
  return {pid, name_of(pid), bytes, command_of(pid), user_of(pid), state_of(pid)};
}

// `pid` or one of its ancestors is `root`. A broken chain (a process that just ended) is not in the tree.
bool descends(std::int64_t pid, std::int64_t root, const ParentOf& parent) {
  for (int depth = 0; depth < 1024 && pid > 0; ++depth) {
    if (pid == root) return true;
    pid = parent(pid).value_or(0);
  }
  return false;
}

}  // namespace

GpuCensus take_census(const Nvml& nvml, const std::string& bus_id) {
  GpuCensus census;
  const std::optional<Nvml::Device> device = nvml.available() ? nvml.device(bus_id) : std::nullopt;
  if (device) return take_census(nvml, *device);
  census.why_not = nvml.available() ? fmt::format("NVML does not know the GPU at {}", bus_id) : nvml.why_not();
  return census;
}

GpuCensus take_census(const Nvml& nvml, Nvml::Device device) {
  GpuCensus census;
  census.memory = nvml.memory(device);
  const auto processes = nvml.processes(device);
  if (!processes) {
    census.why_not = "NVML refuses the list of processes";
    return census;
  }
  for (const GpuProcess& process : *processes) {
    census.processes.push_back(describe_process(process.pid, process.used_bytes));
  }
  look_again(census.processes, state_of, kBetweenLooks);
  return census;
}

void look_again(std::vector<ProcessOnGpu>& processes, const StateOf& state, std::chrono::milliseconds between) {
  const auto waits = [](const ProcessOnGpu& process) { return process.state == 'D'; };
  for (int look = 1; look < kLooksAtState && std::any_of(processes.begin(), processes.end(), waits); ++look) {
    std::this_thread::sleep_for(between);
    for (ProcessOnGpu& process : processes)
      if (waits(process)) process.state = state(process.pid);
  }
}

std::optional<std::int64_t> parent_of(std::int64_t pid) {
  const auto stat = base::process_stat(pid);
  return stat ? std::optional<std::int64_t>(stat->parent) : std::nullopt;
}

std::string describe(const ProcessOnGpu& process) {
  return fmt::format("pid {} ({}) with {} bytes", process.pid, process.name.empty() ? "name unknown" : process.name,
                     process.bytes ? std::to_string(*process.bytes) : "an unknown number of");
}

std::string how_to_end(const ProcessOnGpu& process) {
  const std::string whose = process.user.empty() ? "" : fmt::format("of {}; ", process.user);
  if (process.name.empty()) return "it is not visible here: look for it on the host, or in the other containers";
  switch (process.state) {
    case 'Z':
      return fmt::format("{}it is dead and waits for its parent to collect it: end the parent", whose);
    case 'D':
      return fmt::format(
          "{0}{2} looks within a second saw it wait in the kernel (state D), where a signal may not reach it: kill -9 "
          "{1}, and where it stays, reset the GPU or restart the machine",
          whose, process.pid, kLooksAtState);
    default:
      return fmt::format("{0}kill {1}, and kill -9 {1} if it stays", whose, process.pid);
  }
}

ForeignProcesses find_foreign(const GpuCensus& census, std::int64_t self, std::int64_t supervisor,
                              const ParentOf& parent) {
  ForeignProcesses result;
  if (!census.why_not.empty()) {
    result.why_not = "NVML cannot be asked: " + census.why_not;
    return result;
  }
  const bool sees_self =
      std::any_of(census.processes.begin(), census.processes.end(), [&](const auto& p) { return p.pid == self; });
  if (!sees_self) {
    result.why_not = fmt::format(
        "NVML lists {} process(es), but not this one (pid {}), which holds memory of the GPU: process ids are not "
        "visible here (a container?)",
        census.processes.size(), self);
    return result;
  }
  result.can_tell = true;
  for (const ProcessOnGpu& process : census.processes) {
    if (process.pid != self && !descends(process.pid, supervisor, parent)) result.foreign.push_back(process);
  }
  return result;
}

ForeignProcesses all_processes(const GpuCensus& census) {
  constexpr std::uint64_t kDriverBytes = std::uint64_t{4} << 30;
  ForeignProcesses result;
  if (!census.why_not.empty()) {
    result.why_not = "NVML cannot be asked: " + census.why_not;
    return result;
  }
  if (census.processes.empty() && census.memory && census.memory->used > kDriverBytes) {
    result.why_not = fmt::format("{} bytes are in use and NVML lists no process (a container?)", census.memory->used);
    return result;
  }
  result.can_tell = true;
  result.foreign = census.processes;
  return result;
}

}  // namespace suites::probes
