// Whether this process is one of several that were started together to validate a fleet (base/launch.hpp), and where it
// then writes. A single process, also one of `ssh HOST nsa-validate`, is no launch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/environment.hpp"
#include "reports/json.hpp"

namespace harness {

struct Launch {
  std::string launcher;  // "torchrun" or "slurm"
  std::string job;       // which launch, as far as it is told: SLURM_JOB_ID.SLURM_STEP_ID, TORCHELASTIC_RUN_ID
  std::string host;      // fit for a file name; Slurm's name of the node, else the system's
  std::int64_t rank = 0, size = 1;
  std::optional<std::int64_t> local_rank, local_size;  // among those of this host, where it is told

  // The name of this process's folder: HOST where it is known that it is the only one of its host, else HOST.RANK. So
  // two of one launch never have the same.
  [[nodiscard]] std::string name() const;
};

// Nothing for a single process (a size of 1 too). Throws UsageError with every mistake, a line each: the variable, its
// value, what is allowed. `hostname`: the system's.
[[nodiscard]] std::optional<Launch> launch_of(const base::Environment& environment, const std::string& hostname);
[[nodiscard]] std::optional<Launch> own_launch();  // of this process

// What CUDA_VISIBLE_DEVICES must be so that the processes of one host use different GPUs: the entry of the local rank.
// Nothing where all is well already: one process a host, one GPU visible (the launcher has bound it), no GPU here, or
// no local rank told. Throws UsageError where there are GPUs, and fewer than the local rank asks for.
[[nodiscard]] std::optional<std::string> gpu_of(const Launch& launch, const std::optional<std::string>& visible,
                                                std::int64_t gpus_here);
// Sets it for this process and those that it starts. Returns what it is now, "" where nothing was changed.
std::string take_own_gpu(const Launch& launch);

// For the provenance, under "launch": launcher, job, rank, size, local_rank, local_size, name, gpu.
[[nodiscard]] reports::Json to_json(const Launch& launch, const std::string& gpu);

}  // namespace harness
