// One GPU as NVML shows it, without a CUDA context: its memory and who holds it, clocks, power, heat, errors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "suites/machine/inspection.hpp"
#include "suites/probes/gpu_processes.hpp"

namespace suites::machine {

// Every figure is absent when the driver does not tell it.
struct GpuState {
  std::string name, uuid;
  std::optional<probes::GpuMemory> memory;
  std::optional<probes::GpuClocks> clocks;
  std::optional<probes::GpuPower> power;
  std::optional<std::uint32_t> celsius;
  std::vector<std::string> held_back_by;  // throttle reasons in words
  std::optional<probes::GpuErrors> errors;
};
[[nodiscard]] GpuState look_at_gpu(const probes::Nvml& nvml, probes::Nvml::Device device);

// Memory errors, a lowered power limit, and reasons that hold the clocks back although nothing is at work.
[[nodiscard]] Inspection judge_gpu(const GpuState& state);

// Clocks that were sampled while the GPU worked (MHz) against what it can do. Without samples nothing is judged.
struct ClocksUnderLoad {
  std::vector<double> sm_mhz;
  double sm_max_mhz = 0;
  std::vector<std::string> held_back_by;
};
[[nodiscard]] Inspection judge_clocks(const ClocksUnderLoad& clocks);

// As CUDA's own calls and macros count it: 13000 is "13.0", 12040 is "12.4".
[[nodiscard]] std::string cuda_version(int version);

// Processes that are not this run's, with pid, name, bytes and how to end them; where they cannot be seen, memory that
// the device has given away beyond `own_bytes`.
[[nodiscard]] Inspection judge_foreign(const probes::GpuCensus& census, const probes::ForeignProcesses& foreign,
                                       std::int64_t own_bytes);

}  // namespace suites::machine
