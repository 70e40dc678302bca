#include "nsa/parallel/world.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <utility>

namespace nsa::parallel {

namespace {

using Environment = std::map<std::string, std::string>;

constexpr const char* kStarted = "NPROC_STORE_SERVED";  // the starter's own sign
constexpr const char* kTorchrunStore = "TORCHELASTIC_USE_AGENT_STORE";
constexpr const char* kTorchrunRestarts = "TORCHELASTIC_RESTART_COUNT";
constexpr int kMostRanks = 1'000'000;

const std::string* find(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> whole(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads numbers and gathers the mistakes.
class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  int number(const std::string& name, std::int64_t low, std::int64_t high, int otherwise) {
    const std::string* text = find(environment_, name);
    if (text == nullptr) return otherwise;
    const auto value = whole(*text);
    if (value && *value >= low && *value <= high) return static_cast<int>(*value);
    mistakes.push_back(fmt::format("{} = '{}': a whole number from {} to {} is needed", name, *text, low, high));
    return otherwise;
  }
  int needed(const std::string& name, std::int64_t low, std::int64_t high, int otherwise, const char* why) {
    if (find(environment_, name) == nullptr) mistakes.push_back(fmt::format("{} is not set: {}", name, why));
    return number(name, low, high, otherwise);
  }
  std::string text(const std::string& name, std::string otherwise) {
    const std::string* found = find(environment_, name);
    if (found != nullptr && found->empty()) mistakes.push_back(fmt::format("{} is empty: a host is needed", name));
    return found == nullptr || found->empty() ? std::move(otherwise) : *found;
  }
  // Rank and size that do not fit together; only said where both are numbers.
  void below(const char* rank_name, int rank, const char* size_name, int size) {
    if (mistakes.empty() && rank >= size)
      mistakes.push_back(
          fmt::format("{} = {} with {} = {}: a rank is 0 to {}", rank_name, rank, size_name, size, size - 1));
  }

  std::vector<std::string> mistakes;

 private:
  const Environment& environment_;
};

World of_torchrun(const Environment& environment) {
  Reader read(environment);
  const char* both = "RANK and WORLD_SIZE are given together (torchrun does; unset both to train alone)";
  World world;
  world.size = read.needed("WORLD_SIZE", 1, kMostRanks, 1, both);
  world.rank = read.needed("RANK", 0, kMostRanks - 1, 0, both);
  read.below("RANK", world.rank, "WORLD_SIZE", world.size);
  world.local_size = read.number("LOCAL_WORLD_SIZE", 1, kMostRanks, 1);
  const bool one_machine = find(environment, "LOCAL_RANK") == nullptr;
  world.local_rank = read.number("LOCAL_RANK", 0, kMostRanks - 1, 0);
  if (find(environment, "LOCAL_WORLD_SIZE") != nullptr)
    read.below("LOCAL_RANK", world.local_rank, "LOCAL_WORLD_SIZE", world.local_size);
  else
    world.local_size = one_machine ? 1 : world.local_rank + 1;  // at least
  if (find(environment, "MASTER_ADDR") == nullptr)
    read.mistakes.emplace_back("MASTER_ADDR is not set: the host where rank 0 is");
  world.address = read.text("MASTER_ADDR", "");
  world.port = read.needed("MASTER_PORT", 1, 65535, 0, "the port where the ranks meet");
  world.origin = World::Origin::torchrun;
  if (find(environment, kStarted) != nullptr) {
    world.origin = World::Origin::nproc;
    world.store_is_served = true;
  } else if (const auto* agent = find(environment, kTorchrunStore); agent != nullptr && *agent == "True") {
    world.store_is_served = true;
  }
  if (const auto* restarts = find(environment, kTorchrunRestarts)) world.attempt = *restarts;
  if (!read.mistakes.empty()) throw WorldInvalid(read.mistakes);
  return world;
}

// Below the ports that a machine gives to whoever asks for any.
int port_of_job(std::int64_t job, std::int64_t step) { return static_cast<int>(10'000 + (job + 7919 * step) % 20'000); }

World of_slurm(const Environment& environment) {
  Reader read(environment);
  const char* both = "srun gives SLURM_PROCID and SLURM_NTASKS together";
  const char* tasks = find(environment, "SLURM_STEP_NUM_TASKS") != nullptr ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  World world;
  world.size = read.needed(tasks, 1, kMostRanks, 1, both);
  world.rank = read.needed("SLURM_PROCID", 0, kMostRanks - 1, 0, both);
  read.below("SLURM_PROCID", world.rank, tasks, world.size);
  if (world.size == 1 && read.mistakes.empty()) return {};
  if (find(environment, "SLURM_JOB_ID") == nullptr)
    read.mistakes.emplace_back(
        "SLURM_JOB_ID is not set: srun gives it; of two jobs on one host each has a port of its own by it");
  world.local_rank = read.needed("SLURM_LOCALID", 0, kMostRanks - 1, 0, "srun gives it");
  world.local_size = std::max(read.number("SLURM_NTASKS_PER_NODE", 1, kMostRanks, 1), world.local_rank + 1);
  world.address = read.text("MASTER_ADDR", "");
  if (world.address.empty() && find(environment, "MASTER_ADDR") == nullptr) {
    const std::string* hosts = find(environment, "SLURM_JOB_NODELIST");
    if (hosts == nullptr) {
      read.mistakes.emplace_back("SLURM_JOB_NODELIST is not set, and MASTER_ADDR neither: the host where rank 0 is");
    } else {
      try {
        world.address = first_host(*hosts);
      } catch (const WorldInvalid& invalid) {
        read.mistakes.insert(read.mistakes.end(), invalid.mistakes.begin(), invalid.mistakes.end());
      }
    }
  }
  constexpr std::int64_t kMostId = 2'000'000'000;
  const int job = read.number("SLURM_JOB_ID", 0, kMostId, 0), step = read.number("SLURM_STEP_ID", 0, kMostId, 0);
  world.port = read.number("MASTER_PORT", 1, 65535, port_of_job(job, step));
  world.origin = World::Origin::slurm;
  if (!read.mistakes.empty()) throw WorldInvalid(read.mistakes);
  return world;
}

}  // namespace

const char* to_string(World::Origin origin) {
  switch (origin) {
    case World::Origin::alone:
      return "alone";
    case World::Origin::nproc:
      return "nproc";
    case World::Origin::torchrun:
      return "torchrun";
    case World::Origin::slurm:
      return "slurm";
  }
  return "?";
}

WorldInvalid::WorldInvalid(std::vector<std::string> all)
    : std::invalid_argument(fmt::format("{}", fmt::join(all, "\n"))), mistakes(std::move(all)) {}

World world_of(const Environment& environment) {
  if (find(environment, "RANK") != nullptr || find(environment, "WORLD_SIZE") != nullptr)
    return of_torchrun(environment);
  if (find(environment, "SLURM_PROCID") != nullptr) return of_slurm(environment);
  return {};
}

std::map<std::string, std::string> environment_of(const World& world) {
  return {{"RANK", std::to_string(world.rank)},
          {"WORLD_SIZE", std::to_string(world.size)},
          {"LOCAL_RANK", std::to_string(world.local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(world.local_size)},
          {"MASTER_ADDR", world.address},
          {"MASTER_PORT", std::to_string(world.port)},
          {kStarted, "1"},
          {kTorchrunRestarts, world.attempt}};
}

std::vector<std::string> variables_of_a_world(const Environment& environment) {
  std::vector<std::string> set;
  for (const char* name : {"RANK", "WORLD_SIZE", "SLURM_PROCID"})
    if (const auto* value = find(environment, name)) set.push_back(fmt::format("{}={}", name, *value));
  return set;
}

std::string first_host(const std::string& nodelist) {
  std::string host;
  for (std::size_t at = 0; at < nodelist.size() && nodelist[at] != ',';) {
    if (nodelist[at] != '[') {
      host += nodelist[at++];
      continue;
    }
    const auto end = nodelist.find(']', at);
    const std::string within = end == std::string::npos ? "" : nodelist.substr(at + 1, end - at - 1);
    const std::string first = within.substr(0, within.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string::npos)
      throw WorldInvalid(
          {fmt::format("SLURM_JOB_NODELIST = '{}': no list of hosts, as in node[01-04],other", nodelist)});
    host += first;
    at = end + 1;
  }
  if (host.empty() || host.find_first_of("[] \t") != std::string::npos)
    throw WorldInvalid({fmt::format("SLURM_JOB_NODELIST = '{}': no list of hosts, as in node[01-04],other", nodelist)});
  return host;
}

}  // namespace nsa::parallel
