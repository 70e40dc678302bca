#include "suites/probes/gpu_processes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace suites::probes {

namespace {

std::string name_of(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  return name;
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
  if (!nvml.available()) {
    census.why_not = nvml.why_not();
    return census;
  }
  const std::optional<Nvml::Device> device = nvml.device(bus_id);
  if (!device) {
    census.why_not = fmt::format("NVML does not know the GPU at {}", bus_id);
    return census;
  }
  census.memory = nvml.memory(*device);
  const auto processes = nvml.processes(*device);
  if (!processes) {
    census.why_not = "NVML refuses the list of processes";
    return census;
  }
  for (const GpuProcess& process : *processes) {
    census.processes.push_back({process.pid, name_of(process.pid), process.used_bytes});
  }
  return census;
}

std::optional<std::int64_t> parent_of(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const std::size_t after_name = line.rfind(')');  // the name may hold spaces and parentheses
  if (after_name == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(after_name + 1));
  char state = 0;
  std::int64_t parent = 0;
  if (!(rest >> state >> parent)) return std::nullopt;
  return parent;
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

}  // namespace suites::probes
