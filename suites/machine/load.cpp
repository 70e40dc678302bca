#include "suites/machine/load.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/parse_number.hpp"
#include "base/proc.hpp"
#include "harness/compare.hpp"
#include "harness/load_watch.hpp"
#include "suites/codes.hpp"

namespace suites::machine {

namespace fs = std::filesystem;

namespace {

constexpr double kMuch = 0.25;     // of the CPUs' time
constexpr double kLeast = 0.05;    // cores of a process that is named
constexpr std::size_t kNamed = 5;  // processes

using Processes = std::map<pid_t, base::ProcessStat>;

Processes processes_in(const fs::path& proc) {
  Processes all;
  std::error_code error;
  for (fs::directory_iterator entry(proc, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    const auto pid = base::parse_number<pid_t>(name);
    if (!pid) continue;
    if (const auto stat = base::process_stat(entry->path())) all.emplace(*pid, *stat);
  }
  return all;
}

bool descends(pid_t pid, pid_t root, const Processes& all) {
  for (int depth = 0; depth < 1024 && pid > 0; ++depth) {
    if (pid == root) return true;
    const auto at = all.find(pid);
    pid = at == all.end() ? 0 : at->second.parent;
  }
  return false;
}

// A worker's parent is its supervisor, which runs the same program; a doctor's is somebody's shell.
pid_t root_of_this_run() {
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error),
                 parent = fs::read_symlink(fmt::format("/proc/{}/exe", getppid()), error);
  return !error && own == parent ? getppid() : getpid();
}

}  // namespace

double LoadState::others_cores() const { return std::max(load.others_cores - family_cores, 0.0); }

LoadState look_at_load(LoadPlaces places) {
  if (places.self == 0) places.self = getpid();
  if (places.root == 0) places.root = root_of_this_run();
  if (!places.wait) places.wait = [] { std::this_thread::sleep_for(std::chrono::seconds(1)); };
  const base::LoadMeter meter(places.sources);
  const Processes before = processes_in(places.proc);
  places.wait();
  const Processes after = processes_in(places.proc);
  LoadState state;
  state.load = meter.read();
  if (!state.load.known) return state;
  for (const auto& [pid, seen] : after) {
    const auto earlier = before.find(pid);
    if (earlier == before.end() || pid == places.self) continue;
    const double cores = std::max(seen.cpu_s - earlier->second.cpu_s, 0.0) / state.load.wall_s;
    if (descends(pid, places.root, after)) {
      state.family_cores += cores;
    } else if (cores >= kLeast) {
      state.processes.push_back({pid, seen.name, cores});
    }
  }
  std::sort(state.processes.begin(), state.processes.end(),
            [](const BusyProcess& a, const BusyProcess& b) { return a.cores > b.cores; });
  return state;
}

Inspection judge_load(const LoadState& state) {
  Inspection result;
  result.subject = "load";
  result.seen = harness::to_json(state.load);
  if (!state.load.known) {
    result.cannot_tell = true;
    result.summary = state.load.describe();
    return result;
  }
  const double others = state.others_cores();
  result.seen["others_cores"] = reports::number(others);
  result.seen["in_words"] = result.summary =
      fmt::format("load: other processes use {:.1f} of {} cores", others, state.load.cores);
  std::string names;
  Json rows = Json::array();
  for (std::size_t i = 0; i < std::min(kNamed, state.processes.size()); ++i) {
    const BusyProcess& p = state.processes[i];
    rows.push_back({{"pid", p.pid}, {"name", p.name}, {"cores", reports::number(p.cores)}});
    names += fmt::format("{}pid {} ({}) {:.1f}", i == 0 ? "" : ", ", p.pid, p.name, p.cores);
  }
  result.seen["processes"] = rows;
  result.judgements.push_back(
      {"load.others", harness::at_most(others, kMuch * state.load.cores),
       fmt::format(
           "other processes use {:.1f} of {} cores: {}", others, state.load.cores,
           names.empty() ? "none that is visible here (another container, or another machine of the host)" : names),
       codes::kMachineLoad, result.seen});
  return result;
}

}  // namespace suites::machine
