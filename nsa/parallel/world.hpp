// Which of how many processes this one is, and where they meet: read from the environment that the starter (nsa-train
// --nproc), torchrun or Slurm gives. Pure, but for why_no_interface: no socket, no torch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/launch.hpp"

namespace nsa::parallel {

struct World {
  enum class Origin { alone, nproc, torchrun, slurm };

  int rank = 0, size = 1;              // of all processes
  int local_rank = 0, local_size = 1;  // of those on this machine
  std::string address;                 // where the store is; "" when alone
  int port = 0;
  Origin origin = Origin::alone;
  // Somebody else serves the store (the starter, torchrun's agent); otherwise rank 0 does.
  bool store_is_served = false;
  // Before every key in the store: attempts that share one store (torchrun's restarts) do not read each other's keys.
  std::string attempt = "0";
  std::string network_interface;  // GLOO_SOCKET_IFNAME; "": the one that fits
  bool c10d_speaks = false;
};

[[nodiscard]] const char* to_string(World::Origin origin);

// Whether TORCH_CPP_LOG_LEVEL is set: then what c10d says of lost connections is wanted.
[[nodiscard]] bool c10d_speaks(const base::Environment& environment);

// Who this process is, as base/launch.hpp has it; and where the ranks meet: MASTER_ADDR and MASTER_PORT, which torchrun
// gives; of Slurm otherwise the first host of SLURM_JOB_NODELIST and a port made from job and step. Throws
// base::EnvironmentInvalid with every mistake.
[[nodiscard]] World world_of(const base::Environment& environment);

// Of ranks that meet over Gloo: "", or that `network_interface` is none of this machine's, with those that are.
[[nodiscard]] std::string why_no_interface(const World& world);

// What world_of reads again as the same world of Origin::nproc: what the starter gives each of its processes.
[[nodiscard]] base::Environment environment_of(const World& world);

// NPROC_SUM_BUCKET_KB: KiB of gradients in each sum of a captured step (gradient_buckets.hpp), 0: all in one. Nothing
// where it is not set, or wrong; world_of tells such a mistake too.
[[nodiscard]] std::optional<std::int64_t> sum_bucket_kb(base::Variables& variables);

// The variables that world_of looks at and that are set, for a message.
[[nodiscard]] std::vector<std::string> variables_of_a_world(const base::Environment& environment);

// "node[003-010,12]-ib,other" is "node003-ib". Nothing where this is no list of hosts.
[[nodiscard]] std::optional<std::string> first_host(const std::string& nodelist);

}  // namespace nsa::parallel
