// Who this process is among those that were started together, as torchrun and Slurm's srun tell it. One rule for every
// program; where they meet is the matter of those that do (nsa/parallel/world.hpp).
//
// torchrun: RANK and WORLD_SIZE; LOCAL_RANK, LOCAL_WORLD_SIZE and TORCHELASTIC_RUN_ID where it says so. srun:
// SLURM_PROCID and SLURM_NTASKS (of the step: SLURM_STEP_NUM_TASKS, which counts), SLURM_LOCALID, SLURM_JOB_ID; and
// SLURM_NODEID, SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_ID, SLURMD_NODENAME where it says so. Where both do, torchrun is
// the inner one and counts.
//
// Only srun starts tasks, and each has the variables of its step (SLURM_STEP_...). A script of sbatch (SLURM_PROCID is
// 0 there) and a shell of salloc have the job's alone, SLURM_NTASKS among them: what runs there is one process, which
// would wait for the others for ever if it took itself for a task.
#pragma once

#include <stdexcept>

#include "base/environment.hpp"

namespace base {

struct Launch {
  enum class Launcher { torchrun, slurm };

  Launcher launcher = Launcher::torchrun;
  std::int64_t rank = 0, size = 1;
  std::optional<std::int64_t> local_rank, local_size;  // among those of this host, where it is told
  std::string job;                                     // which launch: TORCHELASTIC_RUN_ID; SLURM_JOB_ID.SLURM_STEP_ID
  std::string host;                                    // Slurm's name of the node; ""
};

inline constexpr std::int64_t kMostProcesses = 10'000'000;  // of a launch
inline constexpr std::int64_t kMostSlurmId = 4'294'967'295;

// Thrown by whoever reads variables; what() says how many mistakes there are, and each of them in a line.
class EnvironmentInvalid : public std::invalid_argument {
 public:
  explicit EnvironmentInvalid(std::vector<std::string> mistakes);
  std::vector<std::string> mistakes;
};

// Nothing for a single process: no launcher's variables, one task of srun, or whatever runs in an allocation of Slurm
// without srun. One process of torchrun is a launch of size 1. Mistakes go to `variables`; what is returned means
// something where there are none.
[[nodiscard]] std::optional<Launch> read_launch(Variables& variables);

// The same. Throws EnvironmentInvalid.
[[nodiscard]] std::optional<Launch> launch_in(const Environment& environment);

// Of a single process in an allocation for several tasks, a sentence: that it runs alone, by which variables, and how
// all are started. "" otherwise.
[[nodiscard]] std::string alone_in_allocation(const Environment& environment);

}  // namespace base
