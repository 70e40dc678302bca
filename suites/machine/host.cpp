#include "suites/machine/host.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "suites/codes.hpp"

namespace suites::machine {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kSharedForSeveralGpus = std::int64_t{1} << 30;
// A number near the top of int64 is how control groups of version 1 say "no limit".
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;

// The first words of a small file of the kernel's; empty when it is not there.
std::vector<std::string> words_of(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::optional<std::int64_t> number_in(const fs::path& file) {
  const std::vector<std::string> words = words_of(file);
  if (words.empty() || words[0].find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const double value = std::strtod(words[0].c_str(), nullptr);
  return value >= static_cast<double>(kNoLimit) ? std::nullopt : std::optional(static_cast<std::int64_t>(value));
}

std::int64_t meminfo_bytes(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key + ":")) continue;
    std::istringstream rest(line.substr(key.size() + 1));
    std::int64_t kib = 0;
    rest >> kib;
    return kib * 1024;
  }
  return 0;
}

void read_limits(const fs::path& group, HostState& state) {
  state.limit_bytes = number_in(group / "memory.max");
  if (!state.limit_bytes) state.limit_bytes = number_in(group / "memory" / "memory.limit_in_bytes");
  for (const char* name : {"memory.current", "memory/memory.usage_in_bytes"})
    if (const auto used = number_in(group / name); used && state.limit_bytes) state.used_of_limit_bytes = *used;

  const std::vector<std::string> cpu = words_of(group / "cpu.max");  // "QUOTA PERIOD" or "max PERIOD"
  if (cpu.size() == 2 && cpu[0] != "max") state.cpu_quota = std::stod(cpu[0]) / std::stod(cpu[1]);
  const auto quota = number_in(group / "cpu" / "cpu.cfs_quota_us"), period = number_in(group / "cpu/cpu.cfs_period_us");
  if (quota && period && *quota > 0) state.cpu_quota = static_cast<double>(*quota) / static_cast<double>(*period);
}

int schedulable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  return count > 0 ? count : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace

std::int64_t HostState::free_bytes() const {
  if (!limit_bytes) return available_bytes;
  return std::min(available_bytes, std::max<std::int64_t>(0, *limit_bytes - used_of_limit_bytes));
}

int HostState::usable_cores() const {
  const int by_quota = cpu_quota ? static_cast<int>(std::floor(*cpu_quota)) : cores;
  return std::max(1, std::min(cores, by_quota));
}

HostState look_at_host(const HostPlaces& places) {
  HostState state;
  state.memory_bytes = meminfo_bytes(places.meminfo, "MemTotal");
  state.available_bytes = meminfo_bytes(places.meminfo, "MemAvailable");
  read_limits(places.control_group, state);
  std::error_code failed;
  const fs::space_info shared = fs::space(places.shared, failed);
  if (!failed) state.shared_bytes = static_cast<std::int64_t>(shared.capacity);
  state.cores = schedulable_cores();
  return state;
}

Inspection judge_host(const HostState& state, const HostNeed& need) {
  Inspection result;
  result.subject = "host";
  result.seen = {{"memory_bytes", state.memory_bytes},
                 {"available_bytes", state.available_bytes},
                 {"free_bytes", state.free_bytes()},
                 {"shared_memory_bytes", state.shared_bytes},
                 {"cores", state.cores},
                 {"usable_cores", state.usable_cores()}};
  if (state.limit_bytes) result.seen["memory_limit_bytes"] = *state.limit_bytes;
  if (state.cpu_quota) result.seen["cpu_quota_cores"] = *state.cpu_quota;
  const std::string free = in_words(static_cast<double>(state.free_bytes()));
  result.summary = fmt::format("host: {} core(s), {} of memory free, {} of shared memory", state.usable_cores(), free,
                               in_words(static_cast<double>(state.shared_bytes)));

  result.judgements.push_back(
      {"host.memory", state.free_bytes() >= need.memory_bytes,
       fmt::format("{} bytes ({}) of host memory can be taken{}, {} bytes ({}) are needed", state.free_bytes(), free,
                   state.limit_bytes ? fmt::format(" (limit of the container: {} bytes, {} in use)", *state.limit_bytes,
                                                   state.used_of_limit_bytes)
                                     : "",
                   need.memory_bytes, in_words(static_cast<double>(need.memory_bytes))),
       codes::kHostResources, result.seen});
  if (state.cpu_quota) {
    result.judgements.push_back({"host.cpu_quota", *state.cpu_quota >= 1,
                                 fmt::format("the container is allowed {:.2f} core(s) of CPU time: a training loop "
                                             "needs one at least",
                                             *state.cpu_quota),
                                 codes::kHostResources, result.seen});
  }
  if (need.gpus > 1) {
    result.judgements.push_back({"host.shared_memory", state.shared_bytes >= kSharedForSeveralGpus,
                                 fmt::format("/dev/shm holds {} bytes; {} GPUs that talk through it want {} (docker: "
                                             "--shm-size)",
                                             state.shared_bytes, need.gpus, kSharedForSeveralGpus),
                                 codes::kHostResources, result.seen});
  }
  return result;
}

}  // namespace suites::machine
