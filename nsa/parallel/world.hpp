// Which of how many processes this one is, and where they meet: read from the environment that the starter (nsa-train
// --nproc), torchrun or Slurm gives. Pure: no socket, no torch.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

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
};

[[nodiscard]] const char* to_string(World::Origin origin);

// what() has a line for every mistake: the variable, its value, what is allowed.
class WorldInvalid : public std::invalid_argument {
 public:
  explicit WorldInvalid(std::vector<std::string> mistakes);
  std::vector<std::string> mistakes;
};

// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT where any of the first two is set; otherwise
// SLURM_PROCID, SLURM_NTASKS (SLURM_STEP_NUM_TASKS, where srun gives it), SLURM_LOCALID, SLURM_NTASKS_PER_NODE, and the
// first host of SLURM_JOB_NODELIST with a port made from job and step, unless MASTER_ADDR and MASTER_PORT say
// otherwise. One task of Slurm and none of the first is alone. Throws WorldInvalid.
[[nodiscard]] World world_of(const std::map<std::string, std::string>& environment);

// What world_of reads again as the same world of Origin::nproc: what the starter gives each of its processes.
[[nodiscard]] std::map<std::string, std::string> environment_of(const World& world);

// The variables that world_of looks at and that are set, for a message.
[[nodiscard]] std::vector<std::string> variables_of_a_world(const std::map<std::string, std::string>& environment);

// "node[003-010,12]-ib,other" is "node003-ib". Throws WorldInvalid.
[[nodiscard]] std::string first_host(const std::string& nodelist);

}  // namespace nsa::parallel
