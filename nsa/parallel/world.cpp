#include "nsa/parallel/world.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>

#include <algorithm>

namespace nsa::parallel {

namespace {

using base::Environment;

constexpr const char* kStarted = "NPROC_STORE_SERVED";  // the starter's own sign
constexpr const char* kTorchrunStore = "TORCHELASTIC_USE_AGENT_STORE";
constexpr const char* kTorchrunRestarts = "TORCHELASTIC_RESTART_COUNT";
constexpr std::int64_t kMostPort = 65535;

void read_address(base::Variables& variables, World& world) {
  world.address = variables.text("MASTER_ADDR");
  if (variables.has("MASTER_ADDR") && world.address.empty()) variables.wrong("MASTER_ADDR", "the host where rank 0 is");
}

void read_port(base::Variables& variables, World& world) {
  world.port =
      static_cast<int>(variables.number("MASTER_PORT", 1, kMostPort, "the port where the ranks meet").value_or(0));
}

void meet_by_torchrun(base::Variables& variables, World& world) {
  if (!variables.has("MASTER_ADDR")) variables.mistake("MASTER_ADDR is not set: the host where rank 0 is");
  if (!variables.has("MASTER_PORT")) variables.mistake("MASTER_PORT is not set: the port where the ranks meet");
  read_address(variables, world);
  read_port(variables, world);
  world.origin = World::Origin::torchrun;
  if (variables.has(kStarted)) {
    world.origin = World::Origin::nproc;
    world.store_is_served = true;
  } else if (variables.text(kTorchrunStore) == "True") {
    world.store_is_served = true;
  }
  if (variables.has(kTorchrunRestarts)) world.attempt = variables.text(kTorchrunRestarts);
}

// Of this host. Where no launcher says it for this start: as the job asked for, and at least as many as are known.
int local_size(base::Variables& variables, const base::Launch& launch) {
  const auto asked = variables.number("SLURM_NTASKS_PER_NODE", 1, base::kMostProcesses, "processes on each host");
  if (launch.local_size) return static_cast<int>(*launch.local_size);
  const bool by_slurm = launch.launcher == base::Launch::Launcher::slurm;
  return static_cast<int>(std::max(by_slurm ? asked.value_or(1) : 1, launch.local_rank.value_or(0) + 1));
}

// Below the ports that a machine gives to whoever asks for any.
int port_of_job(std::int64_t job, std::int64_t step) { return static_cast<int>(10'000 + (job + 7919 * step) % 20'000); }

void meet_by_slurm(base::Variables& variables, World& world) {
  read_address(variables, world);
  if (!variables.has("MASTER_ADDR")) {
    if (!variables.has("SLURM_JOB_NODELIST")) {
      variables.mistake("SLURM_JOB_NODELIST is not set, and MASTER_ADDR neither: the host where rank 0 is");
    } else if (const auto host = first_host(variables.text("SLURM_JOB_NODELIST"))) {
      world.address = *host;
    } else {
      variables.wrong("SLURM_JOB_NODELIST", "a list of hosts, as in node[01-04],other");
    }
  }
  read_port(variables, world);
  const auto job = variables.number("SLURM_JOB_ID", 0, base::kMostSlurmId, "the job's number");
  const auto step = variables.number("SLURM_STEP_ID", 0, base::kMostSlurmId, "the step's number");
  if (!variables.has("MASTER_PORT")) world.port = port_of_job(job.value_or(0), step.value_or(0));
  world.origin = World::Origin::slurm;
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

bool c10d_speaks(const Environment& environment) { return environment.contains("TORCH_CPP_LOG_LEVEL"); }

World world_of(const Environment& environment) {
  base::Variables variables(environment);
  const auto launch = base::read_launch(variables);
  World world;
  if (launch) {
    world.rank = static_cast<int>(launch->rank);
    world.size = static_cast<int>(launch->size);
    world.local_rank = static_cast<int>(launch->local_rank.value_or(0));
    world.local_size = local_size(variables, *launch);
    if (launch->launcher == base::Launch::Launcher::torchrun)
      meet_by_torchrun(variables, world);
    else
      meet_by_slurm(variables, world);
  }
  world.network_interface = variables.text("GLOO_SOCKET_IFNAME");
  world.c10d_speaks = c10d_speaks(environment);
  (void)sum_bucket_kb(variables);
  if (!variables.mistakes().empty()) throw base::EnvironmentInvalid(variables.mistakes());
  return world;
}

std::optional<std::int64_t> sum_bucket_kb(base::Variables& variables) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  return variables.number("NPROC_SUM_BUCKET_KB", 0, kMost,
                          "KiB of gradients in each sum of a captured step; 0: all in one");
}

std::string why_no_interface(const World& world) {
  if (world.network_interface.empty() || ::if_nametoindex(world.network_interface.c_str()) != 0) return "";
  std::vector<std::string> here;
  if (struct if_nameindex* all = ::if_nameindex(); all != nullptr) {
    for (const struct if_nameindex* one = all; one->if_index != 0; ++one) here.emplace_back(one->if_name);
    ::if_freenameindex(all);
  }
  return fmt::format("GLOO_SOCKET_IFNAME is '{}', allowed is a network interface of this machine: {}",
                     world.network_interface, fmt::join(here, ", "));
}

base::Environment environment_of(const World& world) {
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
    if (const auto found = environment.find(name); found != environment.end())
      set.push_back(fmt::format("{}={}", name, found->second));
  return set;
}

std::optional<std::string> first_host(const std::string& nodelist) {
  std::string host;
  for (std::size_t at = 0; at < nodelist.size() && nodelist[at] != ',';) {
    if (nodelist[at] != '[') {
      host += nodelist[at++];
      continue;
    }
    const auto end = nodelist.find(']', at);
    const std::string within = end == std::string::npos ? "" : nodelist.substr(at + 1, end - at - 1);
    const std::string first = within.substr(0, within.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
    host += first;
    at = end + 1;
  }
  if (host.empty() || host.find_first_of("[] \t") != std::string::npos) return std::nullopt;
  return host;
}

}  // namespace nsa::parallel
